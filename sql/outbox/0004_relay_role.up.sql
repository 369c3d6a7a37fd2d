-- The least that the relay needs: to replicate, to read the outbox, and to keep its record. Give it
-- a password with \password outbox_relay, or leave it to the server's pg_hba.conf.
CREATE ROLE outbox_relay LOGIN REPLICATION;
GRANT USAGE ON SCHEMA public, outbox_relay TO outbox_relay;
GRANT SELECT ON public.outbox TO outbox_relay;
GRANT SELECT, INSERT, UPDATE ON outbox_relay.record TO outbox_relay;
GRANT SELECT, INSERT ON outbox_relay.act TO outbox_relay;
