# The image that make images writes, for container engines; from the repository's
# root:
#
#   docker build -f hack/images/controller.Dockerfile --build-arg VERSION=v0.1.0 -t nodeproxy-controller:v0.1.0 .
FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS program
ARG TARGETARCH
ARG VERSION=unknown
WORKDIR /source
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=$VERSION" -o /nodeproxy-controller ./cmd/nodeproxy-controller

FROM scratch
ARG VERSION=unknown
LABEL org.opencontainers.image.title="nodeproxy-controller" \
      org.opencontainers.image.description="Renders Services into the objects that nodeproxy's agents program" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.source="https://github.com/nodeproxy-io/nodeproxy"
COPY --from=program /nodeproxy-controller /nodeproxy-controller
ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/nodeproxy-controller"]
