# The book with all three frameworks, made of the same commands as anywhere else.
#   docker build -t d2lmulti .
#   docker run --rm -p 127.0.0.1:8000:8000 d2lmulti           # read: localhost:8000
#   docker run --rm d2lmulti make test                        # run everything
# Without --build-arg TORCH_INDEX=... (the address of PyTorch's CPU builds, from "Get
# Started" on pytorch.org) the image is several GB bigger: torch then brings CUDA.
FROM python:3.11-slim

# EXTRA="chromium libatomic1" also allows `make check-pages`.
ARG EXTRA=""
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ make $EXTRA \
 && rm -rf /var/lib/apt/lists/*

# Not root, neither while it is built nor while it serves.
RUN useradd --create-home reader && install -d -o reader /book
USER reader
WORKDIR /book
ARG TORCH_INDEX=""
ENV UV_NO_CACHE=1 PIP_NO_CACHE_DIR=1

# First what the environment is made of, so that an edit of a chapter does not redo it.
COPY --chown=reader Makefile pyproject.toml requirements* README.md LICENSE ./
COPY --chown=reader tools/setup_venv.py tools/build_horovod.py tools/
COPY --chown=reader d2lmulti/__init__.py d2lmulti/
RUN make setup horovod

COPY --chown=reader . .
RUN make book

# Every address of the container; which of the machine's, `-p` above decides.
EXPOSE 8000
CMD ["make", "serve", "HOST=0.0.0.0"]
