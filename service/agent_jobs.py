"""Collectors that know jobs, made from the configuration: Slurm, Kubernetes, step times, job outputs."""

# ruff: noqa: ANN401 (a collector's constructor is its own)
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from graynode.service.config import Config, ConfigError


def wanted(config: Config) -> tuple[str, ...]:
    """The collectors to run: those of ``agent.collectors``, and those whose own section asks for them."""
    asked = {
        "slurm_cluster": config.slurm.cluster,
        "kubernetes_cluster": config.kubernetes.cluster,
        "steps": config.steps.socket is not None,
        "job_log": bool(config.job_log.paths),
    }
    return tuple(dict.fromkeys([*config.agent.collectors, *(name for name, yes in asked.items() if yes)]))


def _slurm(class_: Any, given: Any) -> Any:
    from graynode.collectors.slurm.collector import Settings

    s = given.config.slurm
    return class_(given.machine, given.context, Settings(s.job_mapping_dir, s.node_name, s.work))


def _slurm_cluster(class_: Any, given: Any) -> Any:
    from graynode.collectors.slurm.cluster import Settings

    s = given.config.slurm
    settings = Settings(s.every_s, s.deadline_s, s.bin, s.conf, s.completion_log, s.work)
    return class_(given.machine, settings, given.context)


def _steps(class_: Any, given: Any) -> Any:
    from graynode.collectors.step_socket import Settings

    s, default = given.config.steps, Settings()
    settings = Settings(s.socket or default.socket, int(s.mode, 8), s.rate, s.senders)
    return class_(given.machine, given.context, settings)


def _job_log(class_: Any, given: Any) -> Any:
    try:
        return class_(given.machine, given.config.job_log.paths, given.context)
    except ValueError as error:
        raise ConfigError(f"job_log.paths: {error}") from error


def _kubernetes(class_: Any, given: Any) -> Any:
    try:
        return class_(given.machine, given.context, kubernetes_settings(given.config))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _kubernetes_cluster(class_: Any, given: Any) -> Any:
    try:
        return class_(given.machine, kubernetes_settings(given.config))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def kubernetes_settings(config: Config) -> Any:
    """``[kubernetes]`` as its collectors take it."""
    from graynode.collectors.kubernetes.api import Access
    from graynode.collectors.kubernetes.jobs import Labels
    from graynode.collectors.kubernetes.settings import Settings

    k = config.kubernetes
    return Settings(
        node_name=k.node_name,
        socket=k.socket,
        api=k.api,
        access=Access("", k.token_file, k.ca_file),
        keep_s=k.keep_s,
        labels=Labels(k.user_label, k.account_label, k.work_label),
        kueue=k.kueue,
    )


MAKE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "slurm": _slurm,
    "slurm_cluster": _slurm_cluster,
    "kubernetes": _kubernetes,
    "kubernetes_cluster": _kubernetes_cluster,
    "steps": _steps,
    "job_log": _job_log,
}
"""By the collector's name; ``given`` is ``agent_parts.Given``."""
