# The classes and functions of forebay._native, linked with the strategies of papers, and others.
# Configurations, specifications and answers in JSON: docs/pfs.md and docs/cost-model.md.

from collections.abc import Callable
from typing import Any, Self, TypeAlias, final

from forebay._native import *
from forebay._native import Dataset

__all__ = [
    "DEBUG_BUILD",
    "ENDPOINT_BYTES",
    "FORMATS",
    "MAX_NODES",
    "SCHEMAS",
    "VERSION",
    "Dataset",
    "Engine",
    "HandshakeKey",
    "Lease",
    "Listener",
    "OrderState",
    "RunSession",
    "Siblings",
    "SimPlaces",
    "Watchdog",
    "build_with_recipe",
    "check_decoder",
    "check_option",
    "check_parameters",
    "clear_tiers",
    "compare_tier",
    "declare_recipe",
    "describe_sidecar",
    "drop_copies_of_tier",
    "kept_recipe",
    "limit",
    "option_words",
    "pfs_limit",
    "pfs_predict",
    "pfs_presets",
    "pfs_serve",
    "pfs_spec",
    "pfs_suggested_time_scale",
    "run_usage",
    "runtime_directory",
    "serve_store",
    "serve_tiers",
    "sidecar_directory",
    "sim_costs",
    "sim_run",
    "stop_store",
    "stop_tiers",
    "store_status",
    "stored_tier",
    "tier_forecast",
    "tiers_usage",
    "verify_recipe",
    "verify_tier",
]

# What is being done, how much is done, how much there is to do.
_Progress: TypeAlias = Callable[[str, int, int], object]

# Recipes of datasets (docs/provenance.md): builds the index and searches for a recipe, takes a
# declared one, returns the stored one, compares it with all records.
def build_with_recipe(
    dataset: Dataset, *, beside: bool = False, progress: _Progress | None = None
) -> dict[str, Any]: ...
def declare_recipe(
    dataset: Dataset, path: str, *, beside: bool = False, progress: _Progress | None = None
) -> dict[str, Any]: ...
def kept_recipe(dataset: Dataset) -> dict[str, Any] | None: ...
def verify_recipe(
    dataset: Dataset, *, threads: int = 2, progress: _Progress | None = None
) -> dict[str, Any]: ...

# The emulated parallel file system.
def pfs_serve(configuration: str) -> None: ...
def pfs_spec(preset: str | None, toml: str | None, toml_path: str | None, overrides: str) -> str: ...
def pfs_presets() -> list[str]: ...
def pfs_suggested_time_scale(spec: str) -> float: ...
def pfs_limit(spec: str, nodes: int) -> float: ...
def pfs_predict(spec: str, scenario: str) -> str: ...

@final
class SimPlaces:
    def __new__(cls, dataset: str) -> Self: ...
    @staticmethod
    def of_dataset(dataset: Dataset, progress: _Progress | None = None) -> SimPlaces: ...
    @property
    def samples(self) -> int: ...
    @property
    def sample_bytes(self) -> int: ...
    @property
    def file_bytes(self) -> int: ...

def sim_costs() -> str: ...
def sim_run(job: str, places: SimPlaces, seeds: list[int]) -> str: ...
