"""Results opened straight from the mount by the libraries that engineers read them with."""

from __future__ import annotations

from pathlib import Path

import meshio
import numpy

from cloudsimfs.sandbox import Sandbox
from harness import MountFactory

SIDE = 60  # points along one edge


def test_meshio_reads_a_vtu_and_a_vtk(box: Sandbox, mount: MountFactory, tmp_path: Path) -> None:
    grid = numpy.linspace(0.0, 1.0, SIDE)
    points = numpy.stack(numpy.meshgrid(grid, grid, grid), axis=-1).reshape(-1, 3)
    corner = numpy.arange(SIDE - 1)
    first = (corner[:, None] * SIDE + corner[None, :]).ravel()
    quads = numpy.stack([first, first + 1, first + SIDE + 1, first + SIDE], axis=-1)
    mesh = meshio.Mesh(points, {"quad": quads}, point_data={"T": points[:, 0] * 300.0})
    for name in ("field.vtu", "field.vtk"):
        meshio.write(tmp_path / name, mesh)
        box.put(f"case/{name}", tmp_path / name)
    m = mount()
    for name in ("field.vtu", "field.vtk"):
        box.calls.reset()
        found = meshio.read(m.path / "case" / name)
        assert numpy.array_equal(found.points, points)
        assert numpy.array_equal(found.point_data["T"], mesh.point_data["T"])
        moved = sum(call.bytes for call in box.calls.entries("object-get"))
        size = (tmp_path / name).stat().st_size
        assert moved <= max(2 * size, 1 << 20)
