"""The table that requests are answered from: which live model answers for which name and version."""

from collections import Counter
from collections.abc import Mapping

from backends.api.base import LiveModel
from model_repository.sources import ModelId


class VersionTable:
    """Read from any thread, changed by its one owner.

    The mappings are replaced as a whole and never written into, so a reader sees a model before or after
    a swap, never between. A name that several models share answers for none of them.
    """

    def __init__(self) -> None:
        self._live: dict[ModelId, dict[str, LiveModel]] = {}
        self._by_name: dict[tuple[str, str], LiveModel] = {}

    def get(self, name: str, version: str) -> LiveModel | None:
        """By name; version "" is the newest."""
        return self._by_name.get((name, version))

    def get_of(self, model: ModelId, version: str) -> LiveModel | None:
        """By identity; version "" is the newest."""
        versions = self._live.get(model, {})
        return versions.get(version) if version else next(reversed(versions.values()), None)

    def ids(self, name: str) -> list[ModelId]:
        """The live models of this name."""
        return [model for model in self._live if model.name == name]

    def newest(self) -> list[LiveModel]:
        """The newest live version of every model, by name."""
        live = self._live
        return [next(reversed(live[model].values())) for model in _by_name(live)]

    def every(self) -> list[LiveModel]:
        """Every live version of every model, by name and version."""
        live = self._live
        return [version for model in _by_name(live) for version in live[model].values()]

    def swap(self, model: ModelId, versions: Mapping[str, LiveModel]) -> None:
        """`versions` (lowest first) answer for `model` from now on, and nothing else does."""
        live = {each: known for each, known in self._live.items() if each != model}
        if versions:
            live[model] = dict(versions)
        self._set(live)

    def clear(self) -> None:
        self._set({})

    def _set(self, live: dict[ModelId, dict[str, LiveModel]]) -> None:
        sharing = Counter(model.name for model in live)
        by_name: dict[tuple[str, str], LiveModel] = {}
        for model, versions in live.items():
            for version, each in versions.items() if sharing[model.name] == 1 else ():
                by_name[model.name, version] = by_name[model.name, ""] = each
        self._live, self._by_name = live, by_name


def _by_name(live: Mapping[ModelId, object]) -> list[ModelId]:
    return sorted(live, key=lambda model: (model.name, model.namespace))
