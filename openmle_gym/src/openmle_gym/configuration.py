"""Settings: plain dataclasses, YAML profiles and `key=value` overrides, by Hydra.

A layer's command has one dataclass; its fields say name, type, default, doc (the string under the field) and check
(`__post_init__`, raising ConfigError). YAML files hold only what an experiment changes. What leaves this module is an
instance of the dataclass.
"""

import ast
import dataclasses
import inspect
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import SecretStr

from openmle_gym.errors import ConfigError

Schema = TypeVar("Schema")


def secret_from_environment(name: str) -> SecretStr | None:
    """A secret by the name of its environment variable; None when unset or empty. Secrets stand in no file."""
    value = os.environ.get(name, "")
    return SecretStr(value) if value else None


def load_config(schema: type[Schema], name: str, *, configs: Path, overrides: Sequence[str]) -> Schema:
    """Composes one command's settings.

    Args:
        schema: The dataclass that holds the defaults and the checks.
        name: The YAML file in `configs` (without suffix) that lists `<name>_schema` in its defaults.
        configs: The layer's folder of YAML files, absolute.
        overrides: Hydra overrides: `key=value`, `group=profile`.

    Raises:
        ConfigError: A key is unknown, a value has the wrong type or is out of range; names the field.
    """
    ConfigStore.instance().store(name=f"{name}_schema", node=schema)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(configs), version_base="1.3"):
            composed = compose(name, overrides=list(overrides))
        config = OmegaConf.to_object(composed)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key}: missing; give it as {error.full_key}=VALUE") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_plain(error, schema)) from error
    assert isinstance(config, schema)
    return config


def _plain(error: Exception, schema: type) -> str:
    """The error in one line, with the cause that Hydra keeps apart, and the known keys where a key is unknown."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if error.__cause__ is not None:
        lines += [line.strip() for line in str(error.__cause__).splitlines() if line.strip()]
    text = "; ".join(dict.fromkeys(lines))
    if "not in" in text or "Could not override" in text:
        text += f" (known keys: {', '.join(field.name for field in dataclasses.fields(schema))})"
    return text


def describe_config(schema: type) -> str:
    """The settings of a command as help text: one line of name, type and default each, and its doc."""
    docs = field_docs(schema)
    lines = []
    for field in dataclasses.fields(schema):
        kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        lines.append(f"  {field.name}={_default(field)}  ({kind})")
        if docs.get(field.name):
            lines.append(textwrap.indent(textwrap.fill(docs[field.name], 100), "      "))
    return "\n".join(lines)


def _default(field: dataclasses.Field) -> object:
    if field.default is not dataclasses.MISSING:
        return "null" if field.default is None else field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else "???"


def field_docs(schema: type) -> dict[str, str]:
    """The string literal under each field of a dataclass."""
    body = ast.parse(textwrap.dedent(inspect.getsource(schema))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            literal = following.value if isinstance(following, ast.Expr) else None
            doc = literal.value if isinstance(literal, ast.Constant) else ""
            docs[statement.target.id] = " ".join(str(doc).split())
    return docs
