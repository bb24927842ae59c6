import sys
from pathlib import Path

import pytest

import pinned_jars
from pipeline.spark import jars
from pipeline.spark.jars import JarsError, connector_settings


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(jars.JARS_VARIABLE, raising=False)
    monkeypatch.delenv(jars.PACKAGES_VARIABLE, raising=False)


def test_a_folder_of_jars_wins_over_coordinates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "connector.jar").touch()
    expected = {"spark.jars": str(tmp_path / "connector.jar")}
    assert connector_settings(jars=str(tmp_path), packages="a:b:1") == expected
    monkeypatch.setenv(jars.JARS_VARIABLE, str(tmp_path))
    assert connector_settings() == expected
    with pytest.raises(JarsError, match="no jar in"):
        connector_settings(jars=str(tmp_path.parent))


def test_coordinates_go_to_spark_without_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.PACKAGES_VARIABLE, "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0")
    settings = connector_settings()
    assert settings["spark.jars.packages"] == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
    assert "hadoop-client-runtime" in settings["spark.jars.excludes"]


def test_set_that_was_fetched_is_used_without_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pinned_jars.CACHE_VARIABLE, str(tmp_path))

    def fetch(folder: Path, pom: Path, called: str, properties: None) -> None:
        folder.mkdir(parents=True)
        (folder / "connector.jar").touch()

    monkeypatch.setattr(pinned_jars, "fetch", fetch)
    assert jars.installed() == tmp_path / "spark-kafka" / "jars"
    monkeypatch.setattr(pinned_jars, "fetch", None)
    assert connector_settings()["spark.jars"] == str(tmp_path / "spark-kafka/jars/connector.jar")


def test_without_maven_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pinned_jars.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JarsError, match="apt-get install maven"):
        jars.installed()


def test_an_archive_without_the_pinned_set_says_how_to_name_a_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pinned_jars", None)
    with pytest.raises(JarsError, match="name one with --jars or --packages"):
        connector_settings()
