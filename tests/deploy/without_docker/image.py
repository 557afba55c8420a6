"""Carries out a Dockerfile without a Docker daemon: every instruction but the pull of a base image.

See CONTRIBUTING.md#image-and-compose-file-without-docker.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.deploy.without_docker.dockerfile import Instruction, stages
from tests.deploy.without_docker.progress import Say
from tests.deploy.without_docker.sandbox import PATH
from tests.deploy.without_docker.systems import StepError, copy_tree, run_line


@dataclass(slots=True)
class Image:
    """A root directory as far as it is built, and how a container of it starts."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    arguments: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    directory: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)

    def inside(self, place: str) -> Path:
        """Return where a path of the image is on this machine."""
        return self.root / (Path(self.directory) / place).relative_to("/")

    def write(self, path: Path) -> None:
        """Describe it in a file, for the program that runs it."""
        path.write_text(json.dumps(asdict(self) | {"root": str(self.root)}))

    @classmethod
    def read(cls, path: Path) -> "Image":
        values = json.loads(path.read_text())
        return cls(**values | {"root": Path(values["root"])})


@dataclass(frozen=True, slots=True)
class Builder:
    """`context`: the files that `COPY` sees. `base`: stands in for every base image. `roots`: where stages go."""

    context: Path
    base: Path
    roots: Path
    log: Path
    say: Say

    def build(self, dockerfile: str) -> Image:
        """Carry out all stages; return the last one's image. StepError: an instruction failed or is not known."""
        built: dict[str, Image] = {}
        image = None
        for number, stage in enumerate(stages(dockerfile)):
            self.say(f"FROM {stage.base}: this machine's copy of Debian stands in for it")
            root = self.roots / f"stage-{number}"
            shutil.rmtree(root, ignore_errors=True)
            copy_tree(self.base, root)
            built[stage.name] = image = Image(root)
            for instruction in stage.instructions:
                self.say(f"{instruction.name} {instruction.text}"[:110])
                self._carry_out(instruction, image, built)
        assert image is not None, "the Dockerfile has no FROM"
        return image

    def _carry_out(self, instruction: Instruction, image: Image, built: dict[str, Image]) -> None:
        match instruction.name:
            case "RUN":
                run_line(image.root, instruction.text, image.environment | image.arguments, self.log, image.directory)
            case "COPY":
                self._copy(instruction.words(), image, built)
            case "WORKDIR":
                image.directory = instruction.text
                image.inside(".").mkdir(parents=True, exist_ok=True)
            case "ENV":
                image.environment |= instruction.pairs(image.environment)
            case "ARG":
                image.arguments |= instruction.pairs(image.environment)
            case "USER":
                image.user = instruction.text
            case "VOLUME":
                image.volumes += instruction.words()
            case "ENTRYPOINT":
                image.entrypoint = instruction.words()
            case "CMD":
                image.command = instruction.words()
            case "EXPOSE":
                pass  # says which ports are meant for others; opens none
            case name:
                raise StepError(f"the instruction {name} is not known to make deploy-check; teach it to {__file__}")

    def _copy(self, words: Sequence[str], image: Image, built: dict[str, Image]) -> None:
        stage = words[0].removeprefix("--from=") if words[0].startswith("--from=") else None
        *sources, target = words[1:] if stage is not None else words
        for source in sources:
            origin = built[stage].inside(source) if stage is not None else self.context / source
            into = image.inside(target)
            if origin.is_file() and target.endswith("/"):
                into = into / origin.name
            into.parent.mkdir(parents=True, exist_ok=True)
            copy_tree(origin, into)
