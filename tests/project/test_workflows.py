"""The files that GitHub and pre-commit read: they are well formed, and what they call exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.repository import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
FREE_THREADED = "3.14t"
TARGETS = set(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[0].split())


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def jobs() -> list[Any]:
    found = [(path, name, job) for path in WORKFLOWS for name, job in loaded(path)["jobs"].items()]
    return [pytest.param(job, id=f"{path.stem}-{name}") for path, name, job in found]


SETUP = "./.github/actions/setup"
"""What most jobs begin with: an action of ours, whose steps use those of GitHub."""
OF_SETUP = loaded(ROOT / SETUP / "action.yml")


def steps(job: Any, key: str) -> list[str]:
    """What the steps of a job use, or run."""
    return [step[key] for step in job.get("steps", []) if key in step]


TIMED = r"\.ci/budget\.py \w+ \d+ "


def targets(script: str) -> set[str]:
    """What a script has made."""
    called = re.findall(rf"^(?:{TIMED})?make( .+)?$", script, re.M)
    return {word for words in called for word in shlex.split(words) if "=" not in word}


def parts(target: str) -> set[str]:
    """What a target of the Makefile has made: what comes before it, and what its lines make."""
    recipe = re.search(rf"^{target}: ([^#\n]*)[^\n]*\n((?:\t[^\n]*\n)*)", (ROOT / "Makefile").read_text(), re.M)
    assert recipe
    return {word for word in " ".join(recipe.groups()).split() if word in TARGETS}


def test_make_help_lists_every_command() -> None:
    ran = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = re.findall(r"^make (\S+) +\S.*$", ran.stdout, re.M)
    assert sorted(listed) == sorted(TARGETS), ran.stdout


@pytest.mark.parametrize("job", jobs())
def test_what_jobs_run_exists(job: Any) -> None:
    for script in steps(job, "run"):
        assert targets(script) <= TARGETS, script
        for program in re.findall(r"(?:^|\s)((?:\./)?(?:\.ci|go|kernels|examples)/[\w./-]+)", script):
            path = ROOT / program
            assert path.exists(), program
            assert not program.startswith(".ci/") or os.access(path, os.X_OK), program
        # What a name of a branch or a title says must not reach a shell as code.
        assert "${{" not in script, script


@pytest.mark.parametrize("job", jobs())
def test_jobs_end_by_themselves_and_pin_their_actions(job: Any) -> None:
    if "uses" in job:
        assert (ROOT / job["uses"]).exists()
        return
    assert 0 < job["timeout-minutes"] <= 120
    assert job["timeout-minutes"] <= 30 or job not in loaded(GITHUB / "workflows" / "check.yml")["jobs"].values()
    assert "latest" not in str(job["runs-on"])
    for action in [*steps(job, "uses"), *steps(OF_SETUP["runs"], "uses")]:
        assert action == SETUP or re.fullmatch(
            r"(actions/[\w-]+@v\d+|pypa/gh-action-pypi-publish@release/v\d+)", action
        ), action


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_write_only_where_they_publish(path: Path) -> None:
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"}
    # a called one must not wait for its caller
    assert workflow["concurrency"]["group"].startswith(f"{path.stem}-")
    given = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    wanted = {
        "release": {"publish": {"id-token": "write"}, "page": {"contents": "write"}},
        "docs": {"publish": {"pages": "write", "id-token": "write"}},
    }
    assert given == wanted.get(path.stem, {})


def pythons(job: Any) -> set[str]:
    """The versions of Python that a job runs with, those of its matrix included."""
    versions = {
        step["with"]["python-version"] for step in job.get("steps", []) if "setup-python" in step.get("uses", "")
    }
    default = OF_SETUP["inputs"]["python"]["default"]
    versions |= {
        step.get("with", {}).get("python", default) for step in job.get("steps", []) if step.get("uses") == SETUP
    }
    if "${{ matrix.python }}" in versions:
        versions.remove("${{ matrix.python }}")
        versions |= {row["python"] for row in job["strategy"]["matrix"]["include"]}
    return versions


def test_workflows_take_the_go_of_go_mod_the_oldest_python_and_one_without_a_lock() -> None:
    go = re.search(r"^go (\d+\.\d+)", (ROOT / "go.mod").read_text(), re.M)
    python = re.search(r'^requires-python = ">=(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert go and python
    for path in WORKFLOWS:
        found = loaded(path)["jobs"].values()
        of_go = [step for job in found for step in job.get("steps", []) if "setup-go" in step.get("uses", "")]
        of_go += [step for step in OF_SETUP["runs"]["steps"] if "setup-go" in step.get("uses", "")]
        assert {step["with"]["go-version"] for step in of_go} == {f"{go[1]}.x"}
        free_threaded = {FREE_THREADED} if path.stem in ("nightly", "release") else set()
        assert set().union(*map(pythons, found)) == {python[1]} | free_threaded


@pytest.mark.parametrize(("workflow", "wanted"), [("check", {"lint"} | parts("parts")), ("nightly", parts("nightly"))])
def test_jobs_side_by_side_have_all_parts_of_make(workflow: str, wanted: set[str]) -> None:
    made = set()
    for job in loaded(GITHUB / "workflows" / f"{workflow}.yml")["jobs"].values():
        for script in steps(job, "run"):
            made |= targets(script)
    made |= set().union(*map(parts, made))
    assert len(wanted) > 5
    assert wanted - {"parts", "check-wheel"} <= made
    assert "check-wheel" not in wanted or parts("check-wheel") <= made


def test_jobs_run_all_tests_of_their_tier() -> None:
    scripts = [
        script
        for job in loaded(GITHUB / "workflows" / "check.yml")["jobs"].values()
        for script in steps(job, "run")
        if targets(script) & {"test-go", "test-python", "test-engines"}
    ]
    assert all("TIER=check" in script and re.match(TIMED, script) for script in scripts), scripts
    rooms = [re.findall(r'TESTS="([^"]+)"', script) for script in scripts if "test-python" in targets(script)]
    (left_out,), (taken,) = sorted(rooms, key=lambda room: "--ignore" not in str(room))
    assert left_out.replace("--ignore=", "") == taken.replace(" tests/project", "")


def only_documents(*files: str) -> bool:
    command = [str(ROOT / ".ci" / "changed"), *files]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout == "code=false\n"


def test_documents_that_tests_read_count_as_code() -> None:
    assert only_documents("docs/start.md", "docs/tutorials/1_first_layer.ipynb", "docs/design/cpu.md")
    assert not only_documents("docs/start.md", "go/op/op.go")
    assert not only_documents("README.md") and not only_documents("docs/conf.py")
    read = set()
    for path in (ROOT / "tests").rglob("*.py"):
        if path.relative_to(ROOT).parts[1] not in ("docs", "models", "project", "tools"):
            text = path.read_text().replace('" / "', "/")
            read |= set(re.findall(r"\bdocs/[\w/.-]+\.(?:md|ipynb)\b", text))
    read = {name for name in read if (ROOT / name).exists()}
    assert {"docs/c-api.md", "docs/pytorch.md"} <= read
    assert not [name for name in read if only_documents(name)]


def test_every_kind_of_wheel_is_built_for_a_release() -> None:
    matrix = loaded(GITHUB / "workflows" / "release.yml")["jobs"]["build"]["strategy"]["matrix"]["include"]
    assert len(matrix) == len({(row["runner"], row["python"]) for row in matrix}) == 4
    assert sum(row["files"] == "dist/*" for row in matrix) == 1, "the sdist is kept once"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_ask_for_what_doctor_says(path: Path) -> None:
    form = loaded(path)
    assert form["name"] and form["description"]
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    names = [field["id"] for field in asked]
    assert len(set(names)) == len(names)
    assert all(field["attributes"]["label"] for field in asked)
    assert any("`python -m epigrad doctor`" in field["attributes"]["label"] for field in asked)


def test_the_site_is_published_where_its_address_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    owner, name = project["urls"]["Source"].split("/")[-2:]
    address = f"https://{owner}.github.io/{name}/"  # where GitHub Pages shows a repository's site
    assert project["urls"]["Documentation"] == address
    assert f'html_baseurl = "{address}"' in (ROOT / "docs" / "conf.py").read_text()
    jobs = loaded(GITHUB / "workflows" / "docs.yml")["jobs"]
    assert "make docs" in steps(jobs["build"], "run")
    (upload,) = (step for step in jobs["build"]["steps"] if "upload-pages-artifact" in step.get("uses", ""))
    assert f"$(SPHINX) docs {upload['with']['path']};" in (ROOT / "Makefile").read_text()
    assert f"'{owner}/{name}'" in jobs["publish"]["if"]


def test_vulnerabilities_are_reported_in_private() -> None:
    (link,) = loaded(GITHUB / "ISSUE_TEMPLATE" / "config.yml")["contact_links"]
    assert link["url"] in (ROOT / "SECURITY.md").read_text()


def test_hooks_call_the_tools_of_make_format_on_its_files() -> None:
    config = loaded(ROOT / ".pre-commit-config.yaml")
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    hooks = {hook["name"]: hook for hook in config["repos"][0]["hooks"]}
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile.partition("\nformat: ")[2].partition("\n\n")[0]
    for name, hook in hooks.items():
        assert hook["language"] == "system"
        assert name in hook["entry"] and name in recipe
    sources = re.search(r"^C_SOURCES := (.*)$", makefile, re.M)
    assert sources
    for ending in re.findall(r"'\*(\.\w+)'", sources[1]):
        assert re.search(hooks["clang-format"]["files"], f"name{ending}"), ending
