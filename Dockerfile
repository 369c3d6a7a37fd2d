FROM rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package cli

FROM debian:bookworm-slim
COPY --from=build /source/target/release/outbox-relay /usr/local/bin/outbox-relay
COPY outbox-relay.yaml /etc/outbox-relay.yaml
ENV OUTBOX_RELAY_CONFIG=/etc/outbox-relay.yaml
USER 65532:65532
EXPOSE 9464
ENTRYPOINT ["outbox-relay"]
CMD ["run"]
