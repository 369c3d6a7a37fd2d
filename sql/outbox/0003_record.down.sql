DROP TABLE IF EXISTS outbox_relay.act;
DROP TABLE IF EXISTS outbox_relay.record;
DROP SCHEMA IF EXISTS outbox_relay;
