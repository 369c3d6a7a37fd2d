REVOKE ALL ON public.outbox FROM outbox_relay;
REVOKE USAGE ON SCHEMA public FROM outbox_relay;
DROP ROLE IF EXISTS outbox_relay;
