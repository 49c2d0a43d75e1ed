// A picture takes seconds to be drawn: until it is there its place says so, and if it cannot be, that.
export function pictures(root) {
  for (const figure of root.querySelectorAll("figure.picture")) {
    const said = figure.querySelector(".waiting");
    const images = [...figure.querySelectorAll("img")];
    if (!said || images.some((image) => image.complete && image.naturalWidth)) continue;
    const failed = () => { said.textContent = "The picture could not be drawn; the words below say the same."; };
    said.hidden = false;
    for (const image of images) {
      image.addEventListener("load", () => { said.hidden = true; });
      image.addEventListener("error", failed);
      if (image.complete) failed();  // it failed before this script ran
    }
  }
}
