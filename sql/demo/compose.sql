-- The shop of the demo for `docker compose up`, run by psql: each EXECUTE is its own transaction.
\set confirm `cat /demo/confirm.sql`
\set attend `cat /demo/attend.sql`
\i /demo/shop.sql
INSERT INTO registration (id) SELECT 'r-' || n FROM generate_series(1, 500) n ON CONFLICT DO NOTHING;
PREPARE confirm (text, bigint) AS :confirm;
PREPARE attend (text, bigint) AS :attend;
SELECT format('EXECUTE confirm(%L, 1)', id) FROM registration \gexec
SELECT format('EXECUTE attend(%L, 2)', id) FROM registration \gexec
