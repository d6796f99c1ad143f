# Builds the image of make images with a container engine, from the repository's root:
#
#   docker build -f hack/images/agent.Dockerfile --build-arg VERSION=v0.1.0 -t nodeproxy-agent:v0.1.0 \
#     --build-arg GO_IMAGE=golang:1.26-bookworm@sha256:... --build-arg DEBIAN_IMAGE=debian:bookworm-slim@sha256:... .
#
# Base images must be named by digest: docs/install.md shows how. No file of theirs is in the
# result: go.sum pins the modules of the program, and packages.*.lock, which debian-root.sh
# checks, the Debian packages.
ARG GO_IMAGE
ARG DEBIAN_IMAGE
FROM --platform=$BUILDPLATFORM $GO_IMAGE AS program
ARG GO_IMAGE
RUN case "$GO_IMAGE" in *@sha256:*) ;; *) echo "GO_IMAGE is \"$GO_IMAGE\": name it with its digest, as in golang:1.26-bookworm@sha256:..." >&2; exit 1 ;; esac
ARG TARGETARCH
ARG VERSION=unknown
WORKDIR /source
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=$VERSION" -o /nodeproxy-agent ./cmd/nodeproxy-agent

FROM --platform=$BUILDPLATFORM $DEBIAN_IMAGE AS root
ARG DEBIAN_IMAGE
RUN case "$DEBIAN_IMAGE" in *@sha256:*) ;; *) echo "DEBIAN_IMAGE is \"$DEBIAN_IMAGE\": name it with its digest, as in debian:bookworm-slim@sha256:..." >&2; exit 1 ;; esac
ARG TARGETARCH
RUN apt-get update && apt-get install --yes --no-install-recommends mmdebstrap
COPY hack/images/debian-root.sh hack/images/packages.*.lock /
RUN /debian-root.sh "$TARGETARCH" /debian-root

FROM scratch
ARG VERSION=unknown
LABEL org.opencontainers.image.title="nodeproxy-agent" \
      org.opencontainers.image.description="Programs one node's kernel for Services, in kube-proxy's place" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.source="https://github.com/nodeproxy-io/nodeproxy"
COPY --from=root /debian-root /
COPY --from=program /nodeproxy-agent /nodeproxy-agent
ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /
ENTRYPOINT ["/nodeproxy-agent"]
