"""GPU performance monitoring (engine activity), in the child: two samples a device, compared once a round.

NVML computes the metrics between two samples; the two are allocated once and swapped. Needs Hopper or newer.
Metric ids and units (percent, MiB/s) follow nvidia-ml-py 13.615.71.
"""

# ruff: noqa: ANN401 (pynvml has no types)
from __future__ import annotations

import ctypes
import struct
from typing import Any, Final

import pynvml
from pynvml import NVMLError

from graynode.collectors.nvml.fields import GPM, NOT_SUPPORTED

FIELDS: Final = tuple(field for _, field, _ in GPM)
_METRICS_AT: Final = pynvml.c_nvmlGpmMetricsGet_t.metrics.offset
_METRIC: Final = struct.Struct(f"<IId{ctypes.sizeof(pynvml.c_nvmlGpmMetric_t) - 16}x")


def _request() -> Any:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(GPM)
    for i, (metric, _, _) in enumerate(GPM):
        request.metrics[i].metricId = metric
    return request


class Gpm:
    """Engine activity of one device, or of one GPU instance of it. ``NVMLError`` where it has none."""

    def __init__(self, handle: Any, gi: int | None = None) -> None:
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise NVMLError(NOT_SUPPORTED)
        self._handle, self._gi = handle, gi
        self._request = _request()
        self._metrics = memoryview(self._request).cast("B")[_METRICS_AT : _METRICS_AT + _METRIC.size * len(GPM)]
        self._samples: list[Any] = []
        self._primed = False
        try:
            for _ in range(2):
                self._samples.append(pynvml.nvmlGpmSampleAlloc())
        except NVMLError:
            self.close()
            raise

    def read(self) -> tuple[dict[str, float], dict[str, int]]:
        """(values, codes of the metrics that have none) since the previous call; the first gives neither.

        ``NVMLError`` where the sample as a whole fails; the next success begins anew.
        """
        before, now = self._samples
        was_primed, self._primed = self._primed, False
        if self._gi is None:
            pynvml.nvmlGpmSampleGet(self._handle, now)
        else:
            pynvml.nvmlGpmMigSampleGet(self._handle, self._gi, now)
        self._samples = [now, before]
        self._primed = True
        if not was_primed:
            return {}, {}
        self._request.sample1, self._request.sample2 = before, now
        pynvml.nvmlGpmMetricsGet(self._request)
        return self._take()

    def _take(self) -> tuple[dict[str, float], dict[str, int]]:
        values: dict[str, float] = {}
        codes: dict[str, int] = {}
        for (_, field, factor), (_, code, value) in zip(GPM, _METRIC.iter_unpack(self._metrics), strict=True):
            if code:
                codes[field] = code
            else:
                values[field] = value * factor
        return values, codes

    def close(self) -> None:
        """Free the samples."""
        samples, self._samples = self._samples, []
        for sample in samples:
            pynvml.nvmlGpmSampleFree(sample)
