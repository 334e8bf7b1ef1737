"""Tests of async_dqn.tools.show.viewers: videos that end when they should, and windows only where there is a screen."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from async_dqn.base.errors import UserError
from async_dqn.tools.show.viewers import Video, Window


def pictures(number):
    return np.random.default_rng(0).integers(0, 256, (number, 20, 30, 3), dtype=np.uint8)


def test_a_gif_has_the_pictures_and_their_speed(tmp_path):
    video = Video(str(tmp_path / "play.gif"), 20, np.inf)
    for picture in pictures(4):
        video.show(picture)
    assert not video.is_done
    video.close()
    assert video.is_done
    video.close()
    with Image.open(tmp_path / "play.gif") as gif:
        assert (gif.size, gif.n_frames, gif.info["duration"]) == ((30, 20), 4, 50)


@pytest.mark.parametrize("name", ["play.gif", "play.mp4"])
def test_a_video_that_gets_no_picture_leaves_everything_as_it_was(tmp_path, name):
    Video(str(tmp_path / name), 20, np.inf).close()
    assert not (tmp_path / name).exists()
    (tmp_path / name).write_bytes(b"an older one")
    Video(str(tmp_path / name), 20, np.inf).close()
    assert (tmp_path / name).read_bytes() == b"an older one"


def test_a_video_is_done_at_its_length(tmp_path):
    video = Video(str(tmp_path / "play.gif"), 20, 0.1)
    for picture in pictures(2):
        assert not video.is_done
        video.show(picture)
    assert video.is_done
    video.close()


@pytest.mark.parametrize("name", ["no/play.gif", "no/play.mp4", "a" * 300 + ".gif", "folder.gif", "pipe.mp4"])
def test_a_file_that_cannot_be_written_is_named(tmp_path, name):
    (tmp_path / "folder.gif").mkdir()
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(UserError, match="--video="):
        Video(str(tmp_path / name), 20, 1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is always a screen")
def test_without_a_screen_there_is_no_window(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"--human: there is no screen here .* --video=FILE.gif"):
        Window("title", 30)


def test_a_screen_that_does_not_work_is_named(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "no such driver")
    with pytest.raises(UserError, match="--human: no window can be opened"):
        Window("title", 30)


def test_a_window_shows_pictures_until_it_is_closed(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    import pygame

    window = Window("title", 1000)
    (picture,) = pictures(1)
    window.show(picture)
    shown = pygame.surfarray.array3d(pygame.display.get_surface()).transpose(1, 0, 2)
    assert shown.shape == (600, 900, 3)
    np.testing.assert_array_equal(shown[15::30, 15::30], picture)
    assert not window.is_done
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_ESCAPE))
    window.show(picture)
    assert window.is_done
    window.close()


SHOW_BESIDE_TENSORFLOW = """
import numpy as np
import tensorflow
from async_dqn.tools.show.viewers import Window

window = Window("title", 1000)
for picture in np.zeros((3, 210, 160, 3), np.uint8):
    window.show(picture)
window.close()
"""


@pytest.fixture
def screen():
    """The name of an X11 screen that nobody sees."""
    if (server := shutil.which("Xvfb")) is None:
        pytest.skip("Xvfb is not installed")
    command = [server, "-displayfd", "1", "-screen", "0", "800x800x24", "-nolisten", "tcp"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield ":" + process.stdout.readline().strip()
        finally:
            process.terminate()


def test_a_window_on_a_real_screen_survives_tensorflow(screen):
    environment = {**os.environ, "DISPLAY": screen}
    for name in ("SDL_VIDEODRIVER", "SDL_FRAMEBUFFER_ACCELERATION", "WAYLAND_DISPLAY"):
        environment.pop(name, None)
    command = [sys.executable, "-c", SHOW_BESIDE_TENSORFLOW]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_windows_are_drawn_without_opengl(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.delenv("SDL_FRAMEBUFFER_ACCELERATION", raising=False)
    Window("title", 1000).close()
    assert os.environ["SDL_FRAMEBUFFER_ACCELERATION"] == "0"


def test_a_screen_that_takes_no_window_is_named(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    import pygame

    def refuse(size):
        raise pygame.error("no visual")

    monkeypatch.setattr(pygame.display, "set_mode", refuse)
    window = Window("title", 1000)
    with pytest.raises(UserError, match="--human: no window can be opened: no visual"):
        window.show(pictures(1)[0])
    window.close()
