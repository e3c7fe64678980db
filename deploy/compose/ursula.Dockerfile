# Ursula of its published crate, as the project's tests build it. About a quarter of an hour, once.
ARG RUST_VERSION=1
FROM rust:${RUST_VERSION}-bookworm AS build
ARG URSULA_VERSION=0.11.5
RUN cargo install ursula --version "${URSULA_VERSION}" --locked --root /out
RUN mkdir -p /out/state

FROM debian:bookworm-slim
COPY --from=build /out/bin/ursula /usr/bin/ursula
COPY --from=build --chown=65532:65532 /out/state /var/lib/ursula
USER 65532:65532
WORKDIR /var/lib/ursula
ENTRYPOINT ["/usr/bin/ursula"]
