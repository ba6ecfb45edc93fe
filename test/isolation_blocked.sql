-- For the isolation tester, whose database is made from template0: in a spec
-- that has a procedure until_waiting(int), a session that sleeps in narad, be it
-- for messages or at a stop point, counts as blocked, as one does that waits for
-- a lock.  In others the tester waits for it.
ALTER FUNCTION pg_catalog.pg_isolation_test_session_is_blocked(int, int[])
    RENAME TO pg_isolation_test_session_waits_for_lock;
CREATE FUNCTION pg_catalog.pg_isolation_test_session_is_blocked(pid int, others int[])
    RETURNS boolean LANGUAGE sql AS
    'SELECT pg_isolation_test_session_waits_for_lock($1, $2)
        OR to_regprocedure(''until_waiting(int)'') IS NOT NULL
            AND EXISTS (SELECT FROM pg_stat_activity a
                WHERE a.pid = $1 AND a.state = ''active'' AND a.wait_event_type = ''Extension'')';
