-- The SQL doors to the stop points of the testing library (built with
-- NARAD_TESTING).  Superuser only; each test that needs them makes them.
CREATE SCHEMA IF NOT EXISTS narad_test;

CREATE OR REPLACE FUNCTION narad_test.stop_arm(name text) RETURNS void
    AS '$libdir/narad', 'narad_stop_arm' LANGUAGE C STRICT;

-- Holds the worker and autovacuum, too, which come there when it suits them.
CREATE OR REPLACE FUNCTION narad_test.stop_arm_any(name text) RETURNS void
    AS '$libdir/narad', 'narad_stop_arm_any' LANGUAGE C STRICT;

CREATE OR REPLACE FUNCTION narad_test.stop_release(name text) RETURNS void
    AS '$libdir/narad', 'narad_stop_release' LANGUAGE C STRICT;

CREATE OR REPLACE FUNCTION narad_test.stop_waiting(name text) RETURNS integer
    AS '$libdir/narad', 'narad_stop_waiting' LANGUAGE C STRICT;

-- Returns once a process is held at the point; an error after a minute.
CREATE OR REPLACE FUNCTION narad_test.stop_wait(name text) RETURNS void
    LANGUAGE plpgsql STRICT AS $$
BEGIN
    FOR i IN 1 .. 6000 LOOP
        IF narad_test.stop_waiting(name) > 0 THEN
            RETURN;
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
    RAISE EXCEPTION 'nobody came to stop point "%"', name;
END $$;

-- Uses up about so many transaction ids; returns how many.
CREATE OR REPLACE FUNCTION narad_test.burn_xids(count bigint) RETURNS bigint
    AS '$libdir/narad', 'narad_burn_xids' LANGUAGE C STRICT;
