"""The table that requests are answered from: (model, version) -> live model."""

from collections.abc import Mapping

from backends.api.base import LiveModel


class VersionTable:
    """Read from any thread, changed by its one owner.

    The mapping is replaced as a whole and never written into, so a reader sees a model before or after
    a swap, never between. Beside each version stands (model, ""), the newest.
    """

    def __init__(self) -> None:
        self._live: dict[tuple[str, str], LiveModel] = {}

    def get(self, name: str, version: str) -> LiveModel | None:
        return self._live.get((name, version))

    def newest(self) -> list[LiveModel]:
        """The newest live version of every model, by name."""
        live = self._live
        return [live[key] for key in sorted(live) if not key[1]]

    def swap(self, name: str, models: Mapping[str, LiveModel]) -> None:
        """`models` (version -> model, lowest first) answer for `name` from now on, and nothing else does."""
        live = {key: model for key, model in self._live.items() if key[0] != name}
        for version, model in models.items():
            live[name, version] = live[name, ""] = model
        self._live = live

    def clear(self) -> None:
        self._live = {}
