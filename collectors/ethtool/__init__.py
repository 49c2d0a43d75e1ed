"""What a network driver says of its port, over generic netlink."""
