"""Where pictures go: into a video, or onto the screen of whoever is watching."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import imageio_ffmpeg
import numpy as np

from async_dqn.base.errors import UserError, one_line

_MIN_HEIGHT = 600  # pixels of a window; smaller pictures are enlarged


class Video:
    """A .gif or .mp4 file of pictures [H, W, 3] uint8, all of one size.

    Args:
      max_seconds: pictures after this time are left out.

    Attributes:
      fault: why the file is not whole, such as a full disk; empty if it is.

    Raises:
      UserError: the file cannot be opened.
    """

    def __init__(self, path: str, frames_per_second: int, max_seconds: float):
        self.path = Path(path).absolute()
        self.num_pictures = 0
        self.fault = ""
        self._max_pictures = max(1.0, max_seconds * frames_per_second)
        self._is_closed = False
        self._is_new = False
        try:
            self._is_new = not self.path.exists()
            if not self._is_new and not self.path.is_file():  # to open a pipe would take for ever
                raise ValueError("it is no regular file")
            open(path, "ab").close()  # the writer would only find out once the games have been played
        except (OSError, ValueError) as error:
            raise UserError(f"--video={path} cannot be written: {one_line(error)}; give another file") from error
        self._gif = io.BytesIO() if path.endswith(".gif") else None  # it is made at once in the end, whatever writes it
        if self._gif is not None:
            self._writer = imageio.get_writer(self._gif, format="GIF", duration=1000 / frames_per_second, loop=0)
        else:
            self._writer = imageio.get_writer(path, fps=frames_per_second, macro_block_size=2)

    def show(self, picture: np.ndarray) -> None:
        """Appends a picture, while all goes well."""
        if self._is_closed:
            return
        try:
            self._writer.append_data(picture)
            self.num_pictures += 1
        except OSError as error:
            self.fault = one_line(error)
            self.close()

    @property
    def is_done(self) -> bool:
        """Whether it takes no more: it was closed, or is as long as it may be."""
        return self._is_closed or self.num_pictures >= self._max_pictures

    def close(self) -> None:
        """Ends the file; without a picture, all is as if there had been no video."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._writer.close()
            if not self.num_pictures:
                if self._is_new:
                    self.path.unlink()
            elif self._gif is not None:
                self.path.write_bytes(self._gif.getvalue())
            else:  # ffmpeg's end says nothing
                imageio_ffmpeg.count_frames_and_secs(str(self.path))
        except OSError as error:
            self.fault = self.fault or one_line(error)
        except RuntimeError:
            self.fault = self.fault or "ffmpeg left no whole file; is the disk full?"


class Window:
    """A window that shows pictures [H, W, 3] uint8 at the speed of play, until it is closed or Escape is pressed.

    Raises:
      UserError: there is no screen, or it takes no window.
    """

    def __init__(self, title: str, frames_per_second: int):
        if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"} & os.environ.keys():
            raise UserError("--human: there is no screen here (DISPLAY is not set); --video=FILE.gif makes a video")
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        # SDL would draw through OpenGL, and Mesa's, with its LLVM, takes a process that has TensorFlow loaded down.
        os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
        import pygame

        self._pygame = pygame
        try:
            pygame.display.init()
        except pygame.error as error:
            raise UserError(f"--human: no window can be opened: {one_line(error)}") from error
        pygame.display.set_caption(title)
        self._frames_per_second = frames_per_second
        self._clock = pygame.time.Clock()
        self._surface: Any = None
        self._is_closed = False

    def show(self, picture: np.ndarray) -> None:
        """Shows a picture once its time has come."""
        pygame = self._pygame
        factor = max(1, round(_MIN_HEIGHT / picture.shape[0]))
        size = (picture.shape[1] * factor, picture.shape[0] * factor)
        if self._surface is None:
            try:
                self._surface = pygame.display.set_mode(size)
            except pygame.error as error:
                raise UserError(f"--human: no window can be opened: {one_line(error)}") from error
        surface = pygame.image.frombuffer(np.ascontiguousarray(picture).tobytes(), picture.shape[1::-1], "RGB")
        self._surface.blit(pygame.transform.scale(surface, size), (0, 0))
        pygame.display.flip()
        for event in pygame.event.get():
            is_escape = event.type == pygame.KEYDOWN and event.key == pygame.K_ESCAPE
            self._is_closed |= event.type == pygame.QUIT or is_escape
        self._clock.tick(self._frames_per_second)

    @property
    def is_done(self) -> bool:
        """Whether whoever watched has closed it."""
        return self._is_closed

    def close(self) -> None:
        """Closes it."""
        self._pygame.display.quit()
