-- A later step of the same registration, written the same way: its event has the next version.
WITH attended AS (
    UPDATE public.registration
       SET state = 'ATTENDED', version = version + 1
     WHERE id = $1 AND state = 'CONFIRMED' AND version = $2
 RETURNING id, version
)
INSERT INTO public.outbox (aggregate_id, aggregate_version, event_type, payload)
SELECT id, version, 'RegistrationAttended', jsonb_build_object('id', id, 'version', version)
  FROM attended
RETURNING event_id, aggregate_version
