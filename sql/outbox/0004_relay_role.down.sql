REVOKE ALL ON outbox_relay.act, outbox_relay.record, public.outbox FROM outbox_relay;
REVOKE USAGE ON SCHEMA public, outbox_relay FROM outbox_relay;
DROP ROLE IF EXISTS outbox_relay;
