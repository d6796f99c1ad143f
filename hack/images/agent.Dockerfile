# The image that make images writes, for container engines; from the repository's
# root:
#
#   docker build -f hack/images/agent.Dockerfile --build-arg VERSION=v0.1.0 -t nodeproxy-agent:v0.1.0 .
#
# debian-root.sh names the release of Debian whose packages are in it, and the
# packages; the release that the stages below run on does not matter.
FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS program
ARG TARGETARCH
ARG VERSION=unknown
WORKDIR /source
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=$VERSION" -o /nodeproxy-agent ./cmd/nodeproxy-agent

FROM --platform=$BUILDPLATFORM debian:bookworm-slim AS root
ARG TARGETARCH
RUN apt-get update && apt-get install --yes --no-install-recommends mmdebstrap
COPY hack/images/debian-root.sh /
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
