-- The signatures of everything that may be called, word for word: whoever
-- changes one breaks somebody's program.
SET client_min_messages = warning;
\pset format unaligned
SELECT p.proname, pg_get_function_arguments(p.oid) AS arguments
FROM pg_proc p WHERE p.pronamespace = 'narad'::regnamespace AND p.proname !~ '^_'
ORDER BY p.proname COLLATE "C", pg_get_function_identity_arguments(p.oid) COLLATE "C";
SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS identity, pg_get_function_result(p.oid) AS result
FROM pg_proc p WHERE p.pronamespace = 'narad'::regnamespace AND p.proname !~ '^_'
ORDER BY p.proname COLLATE "C", pg_get_function_identity_arguments(p.oid) COLLATE "C";

-- What the types and views consist of.
SELECT c.relname, c.relkind, string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum) AS columns
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'narad'::regnamespace AND c.relkind IN ('c', 'r', 'v')
GROUP BY c.oid, c.relname, c.relkind ORDER BY c.relname COLLATE "C";

-- Volatility, strictness, parallel safety, and who may call; those who define
-- security otherwise or set something are none.
SELECT p.provolatile AS volatile, p.proisstrict AS strict, p.proparallel AS parallel,
	has_function_privilege('public', p.oid, 'EXECUTE') AS by_public,
	string_agg(DISTINCT p.proname, ' ' ORDER BY p.proname) AS functions
FROM pg_proc p WHERE p.pronamespace = 'narad'::regnamespace
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4;
SELECT p.oid::regprocedure FROM pg_proc p
WHERE p.pronamespace = 'narad'::regnamespace AND (p.prosecdef OR p.proconfig IS NOT NULL OR p.prolang <> 13);
SELECT c.relname, c.relkind, c.relacl IS NOT NULL AND has_table_privilege('public', c.oid, 'SELECT') AS by_public
FROM pg_class c WHERE c.relnamespace = 'narad'::regnamespace AND c.relkind IN ('r', 'v') ORDER BY c.relname COLLATE "C";
SELECT has_schema_privilege('public', 'narad', 'USAGE') AS usage, has_schema_privilege('public', 'narad', 'CREATE') AS create;

-- Named arguments, in any order.
SELECT narad.create_topic(value_type => 'text', topic => 'sig_topic', max_in_flight => 10);
SELECT partition, msg_offset FROM narad.produce_bytes(topic => 'sig_topic', key => 'k', value => 'v'::bytea);
SELECT msg_offset, key, value FROM narad.fetch_bytes(topic => 'sig_topic', partition => 0, from_offset => 0, max_bytes => 1);
SELECT msg_offset, deliveries FROM narad.consume_bytes(topic => 'sig_topic', consumer_group => 'default', max_messages => 5, wait => '0');
DROP TABLE sig_topic;
