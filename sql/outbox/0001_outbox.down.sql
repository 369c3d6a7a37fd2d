-- Removes the table with every event in it.
DROP TABLE IF EXISTS public.outbox;
