"""The simulated driver library: other processes, and forked children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from nvml_sim import Code, Scenario, presets

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvml_sim import CallLog

pytest_plugins = ["nvml_sim.fixtures"]
pynvml: Any = pytest.importorskip("pynvml")


def child(body: str, variables: dict[str, str]) -> Any:
    """Run a script on a simulated machine and return the JSON it prints."""
    script = "import json, os, sys, pynvml\n" + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_other_process(driver_for: Callable[[Scenario], dict[str, str]], driver_log: CallLog) -> None:
    """Another process finds the library as its driver, in real time, and leaves what it called in writing."""
    body = """
        pynvml.nvmlInit()
        found = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        print(json.dumps([pynvml.nvmlDeviceGetUtilizationRates(device).gpu for device in found]))
    """
    assert child(body, driver_for(presets.four_gpus())) == [10, 20, 30, 40]
    assert len(driver_log.initialised) == 1
    assert driver_log.calls("nvmlDeviceGetUtilizationRates") == 4


def test_other_process_without_driver(driver_for: Callable[[Scenario], dict[str, str]]) -> None:
    """Another process on a machine without a driver finds no library."""
    body = """
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            print(json.dumps(error.value))
    """
    assert child(body, driver_for(presets.no_driver())) == Code.LIBRARY_NOT_FOUND


def test_forked_child(driver_for: Callable[[Scenario], dict[str, str]], driver_log: CallLog) -> None:
    """A forked child initialises the library anew and then reads, also while the parent is within a call."""
    body = """
        import threading
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        end = threading.Event()
        fields = (pynvml.c_nvmlFieldValue_t * 1000)()
        for field in fields:
            field.fieldId = 83
        def busy():
            while not end.is_set():
                pynvml.nvmlLib.nvmlDeviceGetFieldValues(device, 1000, fields)
        thread = threading.Thread(target=busy)
        thread.start()
        answers = []
        for _ in range(20):
            r, w = os.pipe()
            if os.fork() == 0:
                try:
                    pynvml.nvmlDeviceGetCount()
                    before = 0
                except pynvml.NVMLError as error:
                    before = error.value
                pynvml.nvmlInit()
                value = pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(0)).gpu
                os.write(w, json.dumps([before, value]).encode())
                os._exit(0)
            os.close(w)
            with os.fdopen(r) as pipe:
                answers.append(json.loads(pipe.read()))
            os.wait()
        end.set()
        thread.join()
        print(json.dumps(answers))
    """
    variables = driver_for(presets.h200())
    assert (
        child("import warnings; warnings.simplefilter('ignore')\n" + textwrap.dedent(body), variables)
        == [[Code.UNINITIALIZED, 92]] * 20
    )
    assert len(set(driver_log.initialised)) == 21
