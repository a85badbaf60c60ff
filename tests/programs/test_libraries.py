"""Results written to and read from the mount by the libraries that engineers use.

Each writes, the mount is made anew with an empty cache, and each reads what the service has. They run in a process of
their own: some hold the interpreter's lock, which the sandbox needs, while they wait for the mount.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from harness import MountFactory, run

LIBRARIES = {
    "numpy": (
        """
        a = numpy.lib.format.open_memmap(path, mode="w+", dtype="f8", shape=(300, 1000))
        a[:] = numpy.arange(300_000.0).reshape(300, 1000)
        a[7] = -1.0
        a.flush()
        """,
        """
        a = numpy.load(path, mmap_mode="r")
        assert a.shape == (300, 1000) and (a[7] == -1.0).all() and a[299, 999] == 299_999.0
        """,
    ),
    "pandas": (
        """
        table = pandas.DataFrame({"step": range(20_000), "residual": 1e-3})
        table.to_csv(path, index=False)
        table[:5].to_csv(path, mode="a", header=False, index=False)
        """,
        """
        table = pandas.concat(pandas.read_csv(path, chunksize=3000))
        assert len(table) == 20_005 and table.step.sum() == 199_990_010
        """,
    ),
    "h5py": (
        """
        with h5py.File(path, "w") as file:
            u = file.create_dataset("u", (100, 4000), chunks=(10, 4000), compression="gzip", maxshape=(None, 4000))
            u[:] = numpy.arange(400_000.0).reshape(100, 4000)
        with h5py.File(path, "r+") as file:  # as a solver appends a time step
            file["u"].resize(110, axis=0)
            file["u"][100:] = 5.0
        """,
        """
        with h5py.File(path) as file:
            assert file["u"].shape == (110, 4000) and file["u"][99, 3999] == 399_999.0 and file["u"][105, 0] == 5.0
        """,
    ),
    "netCDF4": (
        """
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("time", None)
            file.createDimension("x", 1000)
            file.createVariable("T", "f4", ("time", "x"), zlib=True)[:] = numpy.full((20, 1000), 300.0)
        with netCDF4.Dataset(path, "a") as file:
            file["T"][20] = numpy.arange(1000.0)
        with netCDF4.Dataset(path + ".nc3", "w", format="NETCDF3_64BIT_OFFSET") as file:
            file.createDimension("x", 1000)
            file.createVariable("T", "f4", ("x",))[:] = 400.0
        """,
        """
        with netCDF4.Dataset(path) as file:
            assert file["T"].shape == (21, 1000) and file["T"][19, 5] == 300.0 and file["T"][20, 999] == 999.0
        with netCDF4.Dataset(path + ".nc3") as file:
            assert (file["T"][:] == 400.0).all()
        """,
    ),
    "meshio": (
        """
        points = numpy.random.default_rng(1).random((3000, 3))
        cells = [("tetra", numpy.arange(2000).reshape(-1, 4))]
        mesh = meshio.Mesh(points, cells, point_data={"T": points[:, 0]})
        for suffix in (".vtu", ".vtk", ".xdmf"):
            mesh.write(path + suffix)
        """,
        """
        points = numpy.random.default_rng(1).random((3000, 3))
        for suffix in (".vtu", ".vtk", ".xdmf"):
            mesh = meshio.read(path + suffix)
            assert numpy.allclose(mesh.points, points) and numpy.allclose(mesh.point_data["T"], points[:, 0])
        """,
    ),
}


@pytest.mark.parametrize("api", ["v2"])
def test_written_here_and_read_elsewhere(mount: MountFactory) -> None:
    found = [name for name in LIBRARIES if importlib.util.find_spec(name)]
    if not found:
        pytest.skip("none of the libraries is installed")
    m = mount()
    (m.path / "results").mkdir()
    _run_all(found, 0, m.path / "results")
    m.settle()
    m.umount()
    m.option(cache_dir=m.cache.with_name("another"))
    m.start()
    _run_all(found, 1, m.path / "results")


def _run_all(libraries: list[str], step: int, folder: Path) -> None:
    script = [f"import os, sys, {', '.join(libraries)}", "os.chdir(sys.argv[1])"]
    for name in libraries:
        script += [f"path = 'data.{name}'", "if True:" + LIBRARIES[name][step]]
    run(sys.executable, "-c", "\n".join(script), folder)
