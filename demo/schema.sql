-- The demo's own tables: what the consumers do with the messages.

CREATE EXTENSION narad;
SELECT narad.create_topic('packages', partitions => 4);

-- The effect: one row for a section and maintainer, in an ordinary table.
CREATE TABLE totals
(
    section         text,
    maintainer      text,
    packages        bigint NOT NULL,
    installed_size  bigint NOT NULL,
    PRIMARY KEY (section, maintainer)
);

-- One row for each batch whose effect and ack were committed.
CREATE TABLE batches
(
    consumer        int NOT NULL,
    messages        bigint NOT NULL
);

-- A consumer that ended with an error.
CREATE TABLE failures
(
    consumer        int NOT NULL
);

-- Takes batches until all that was produced has been committed. A batch's
-- effect commits together with its ack: neither can happen without the other.
-- The notice reaches the client before that commit; so the client knows of
-- deliveries whose transaction was lost, too.
CREATE PROCEDURE consume_all(consumer int, produced bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    batch   record;
BEGIN
    LOOP
        SELECT count(*) AS messages,
               array_agg(m.receipt) AS receipts,
               array_agg(m.value) AS messages_json,
               string_agg(m.partition || ':' || m.msg_offset, ' ') AS positions
        INTO batch
        FROM narad.consume('packages', 100) AS m;

        IF batch.messages = 0 THEN
            COMMIT;
            EXIT WHEN (SELECT coalesce(sum(b.messages), 0) >= produced FROM batches AS b);
            PERFORM pg_sleep(0.05);
            CONTINUE;
        END IF;

        RAISE NOTICE 'delivered %', batch.positions;

        -- In one order, so that consumers do not wait for each other in a circle.
        INSERT INTO totals AS t
        SELECT coalesce(v ->> 'section', '(none)'), coalesce(v ->> 'maintainer', '(none)'),
               count(*), coalesce(sum((v ->> 'installed_size')::bigint), 0)
        FROM unnest(batch.messages_json) AS v
        GROUP BY 1, 2
        ORDER BY 1, 2
        ON CONFLICT (section, maintainer) DO UPDATE
        SET packages = t.packages + excluded.packages,
            installed_size = t.installed_size + excluded.installed_size;

        INSERT INTO batches VALUES (consumer, batch.messages);
        PERFORM narad.ack(batch.receipts);
        COMMIT;
    END LOOP;
END
$$;

-- Returns once that many messages have been committed; tells the way there.
-- Gives up when a consumer failed, or when nothing moves for two minutes.
CREATE PROCEDURE watch(until bigint, produced bigint)
LANGUAGE plpgsql
AS $$
DECLARE
    done    bigint;
    before  bigint := -1;
    told    bigint := -1;
    moved   timestamptz;
BEGIN
    LOOP
        SELECT coalesce(sum(messages), 0) INTO done FROM batches;
        IF EXISTS (SELECT FROM failures) THEN
            RAISE EXCEPTION 'a consumer failed';
        END IF;
        COMMIT;
        IF done <> before THEN
            before := done;
            moved := clock_timestamp();
        ELSIF clock_timestamp() > moved + interval '2 min' THEN
            RAISE EXCEPTION 'nothing was consumed for two minutes';
        END IF;
        IF done * 10 / produced > told OR done >= until THEN
            told := done * 10 / produced;
            RAISE NOTICE '% of % consumed', done, produced;
        END IF;
        EXIT WHEN done >= until;
        PERFORM pg_sleep(0.01);
    END LOOP;
END
$$;
