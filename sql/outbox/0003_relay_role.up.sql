-- The least that the relay needs: to replicate, and to read the outbox. Give it a password with
-- \password outbox_relay, or leave it to the server's pg_hba.conf.
CREATE ROLE outbox_relay LOGIN REPLICATION;
GRANT USAGE ON SCHEMA public TO outbox_relay;
GRANT SELECT ON public.outbox TO outbox_relay;
