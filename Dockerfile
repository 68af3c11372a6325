# The book with all three frameworks, made of the same commands as anywhere else.
#   docker build -t d2lmulti .
#   docker run --rm -p 8000:8000 d2lmulti                     # read: localhost:8000
#   docker run --rm d2lmulti make test                        # run everything
# Without --build-arg TORCH_INDEX=... (the address of PyTorch's CPU builds, from "Get
# Started" on pytorch.org) the image is several GB bigger: torch then brings CUDA.
FROM python:3.11-slim

# EXTRA="chromium libatomic1" also allows `make check-pages`.
ARG EXTRA=""
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ make $EXTRA \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /book
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1

# First what the environment is made of, so that an edit of a chapter does not redo it.
COPY Makefile pyproject.toml requirements*.txt constraints*.txt README.md LICENSE ./
COPY tools/setup_venv.py tools/build_horovod.py tools/
COPY d2lmulti/__init__.py d2lmulti/
RUN make setup horovod

COPY . .
RUN make book

EXPOSE 8000
CMD ["make", "serve", "HOST=0.0.0.0"]
