"""Print the bill of materials of the image that this runs in, as CycloneDX 1.6 JSON.

It lists the Python packages of one environment from their metadata, and the Debian packages from
the database of dpkg or from `status.d`, which images without a package manager have. The output for
an image is always the same. It needs only the standard library.
"""

import argparse
import email.parser
import json
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from email.message import Message
from pathlib import Path
from urllib.parse import quote

SPEC_VERSION = "1.6"
LICENSE_CHARACTERS_MAX = 200
"""Limit of the length of a license name: some packages have the whole text in that field."""

Component = dict[str, object]


def main() -> None:
    """Write the bill of materials to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("/"), help="root of the file system")
    parser.add_argument("--environment", type=Path, required=True, help="virtual environment")
    parser.add_argument("--name", required=True, help="name of the image")
    options = parser.parse_args()
    components = [*python_components(options.environment), *debian_components(options.root)]
    json.dump(bill(options.name, components), sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")


def bill(name: str, components: Iterable[Component]) -> Component:
    """Build the document: its subject, and its components in order."""
    ordered = sorted(components, key=lambda component: str(component["bom-ref"]))
    own = next((each for each in ordered if each["name"] == name), None)
    version = str(own["version"]) if own else "0"
    content = json.dumps(ordered, sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        # Derived from the content, not the time: the same image has the same serial number.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": f"image:{name}",
                "name": name,
                "version": version,
            }
        },
        "components": ordered,
        "dependencies": [
            {"ref": f"image:{name}", "dependsOn": [each["bom-ref"] for each in ordered]}
        ],
    }


def python_components(environment: Path) -> Iterator[Component]:
    """Yield the packages of a virtual environment."""
    for path in environment.glob("lib/python3.*/site-packages/*.dist-info/METADATA"):
        fields = email.parser.Parser().parsestr(path.read_text(encoding="utf-8"))
        name, version = str(fields["Name"]), str(fields["Version"])
        normal = name.lower().replace("_", "-")
        yield component(
            name, version, f"pkg:pypi/{quote(normal)}@{quote(version)}", license_of(fields)
        )


def license_of(fields: Message) -> str:
    """Return the license name or expression of a Python package, empty if it has none."""
    for field in ("License-Expression", "License"):
        text = str(fields.get(field, "")).strip()
        if text and "\n" not in text and len(text) <= LICENSE_CHARACTERS_MAX:
            return text
    classifiers = [str(each) for each in fields.get_all("Classifier", [])]
    names = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License ::")]
    return " and ".join(names)


def debian_components(root: Path) -> Iterator[Component]:
    """Yield the Debian packages in `/var/lib/dpkg/status` or in the files of `status.d`."""
    folder = root / "var/lib/dpkg"
    files = [folder / "status", *sorted(folder.glob("status.d/*"))]
    for path in files:
        if path.is_file():
            for fields in paragraphs(path.read_text(encoding="utf-8")):
                yield debian_component(fields)


def paragraphs(text: str) -> Iterator[Mapping[str, str]]:
    """Yield the packages of a control file that are installed."""
    for part in text.split("\n\n"):
        if part.strip():
            fields = email.parser.Parser().parsestr(part.strip() + "\n")
            if str(fields.get("Status", " installed")).endswith(" installed"):
                yield dict(fields)


def debian_component(fields: Mapping[str, str]) -> Component:
    """Convert a Debian package to a component."""
    name, version = fields["Package"], fields["Version"]
    where = f"?arch={quote(fields.get('Architecture', 'all'))}"
    return component(name, version, f"pkg:deb/debian/{quote(name)}@{quote(version)}{where}", "")


def component(name: str, version: str, purl: str, license_name: str) -> Component:
    """Return a component; its reference is the package URL."""
    found: Component = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if license_name:
        found["licenses"] = [{"license": {"name": license_name}}]
    return found


if __name__ == "__main__":
    main()
