"""Which models lie in the repositories, and under which identity."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from model_repository import layout
from model_repository.layout import Snapshot
from model_repository.texts import ambiguous


class ModelId(NamedTuple):
    """What tells a model from all others. `namespace` is its repository with --model-namespacing, else ""."""

    namespace: str
    name: str

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Sources:
    """The repositories as they are on disk now; every method but `id_in` reads it.

    Without `namespacing` a name is one model, whose folders collide if there are several.
    """

    paths: Sequence[Path]
    namespacing: bool = False

    def id_in(self, repository: Path, name: str) -> ModelId:
        return ModelId(str(repository) if self.namespacing else "", name)

    def scan(self) -> dict[ModelId, list[Path]]:
        """Every model and its folders. Raises ServingError(UNAVAILABLE) for a repository that cannot be read."""
        found: dict[ModelId, list[Path]] = {}
        for name, folders in layout.scan(self.paths).items():
            for folder in folders:
                found.setdefault(self.id_in(folder.parent, name), []).append(folder)
        return found

    def ids(self, name: str) -> list[ModelId]:
        """The models of this name, without listing the others."""
        return list(dict.fromkeys(self.id_in(folder.parent, name) for folder in self._folders(name)))

    def folders(self, model: ModelId) -> list[Path]:
        return [folder for folder in self._folders(model.name) if self.id_in(folder.parent, model.name) == model]

    def look(self) -> dict[ModelId, Snapshot]:
        """The state of every model's files."""
        return {model: layout.look(folders) for model, folders in self.scan().items()}

    def _folders(self, name: str) -> list[Path]:
        return layout.folders_of(self.paths, name)


def choose(name: str, known: Iterable[ModelId], *, home: str = "", namespace: str = "") -> ModelId:
    """The model that a step of an ensemble in the repository `home` means by `name`.

    That of `namespace` where the step names one, else that of its own repository, else the only one there is.
    Raises ServingError(INVALID) where that is not one.
    """
    if namespace:
        return ModelId(namespace, name)
    ids = [model for model in known if model.name == name]
    if ModelId(home, name) in ids or not ids:
        return ModelId(home, name)
    if len(ids) > 1:
        raise ambiguous(name, len(ids))
    return ids[0]
