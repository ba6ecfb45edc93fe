# Copyright (c) 2026, the Narad authors
#
# I1: what was produced is consumed as it was, in whatever encoding the database is,
#     and whatever names topics, groups, keys, producers and channels have; what
#     the encoding cannot hold is refused before anything is appended.
# I12: one name is never taken for another.
# Whatever operators, functions, types and tables a user puts in front of those of
# the server by his search_path, no call and no worker uses them.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('names', conf => [ 'autovacuum = off', "narad.frontier_save_interval = '1s'" ]);
$node->start;

# ---- encodings, and names ------------------------------------------------------

# Helpers of one database: odd() is a text that is in no other encoding what it is
# in this one, called() a name with all that may have to be quoted.
sub odd_database
{
	my ($db, $encoding, $bytes) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $db ENCODING '$encoding' LOCALE 'C' TEMPLATE template0");
	$node->safe_psql($db, qq{
CREATE EXTENSION narad;
CREATE FUNCTION odd() RETURNS text IMMUTABLE LANGUAGE sql AS \$\$ SELECT convert_from('$bytes', '$encoding') \$\$;
CREATE FUNCTION called(what text) RETURNS text IMMUTABLE LANGUAGE sql AS
	\$\$ SELECT what || E'.A"b''c\\\\d%s/..\\n{e},' || odd() \$\$;
CREATE FUNCTION topic(what text) RETURNS text IMMUTABLE LANGUAGE sql AS
	\$\$ SELECT quote_ident(called('s')) || '.' || quote_ident(called(what)) \$\$;
CREATE FUNCTION reason(n bigint) RETURNS text IMMUTABLE LANGUAGE sql AS
	\$\$ SELECT repeat('x', n::int) || called('r') || repeat(odd(), 200) \$\$;
DO \$\$ BEGIN EXECUTE format('CREATE SCHEMA %I', called('s')); END \$\$;
CREATE PROCEDURE until(condition text) LANGUAGE plpgsql AS \$\$
DECLARE
	met boolean := false;
BEGIN
	FOR i IN 1 .. 6000 LOOP
		EXECUTE 'SELECT ' || condition INTO met;
		EXIT WHEN met;
		COMMIT;
		PERFORM pg_sleep(0.01);
	END LOOP;
	IF NOT met THEN
		RAISE 'never: %', condition;
	END IF;
END \$\$;
});
	return;
}

# What a statement comes to.
sub state_of
{
	my ($s, $sql) = @_;
	return $s->try($sql) // 'connection lost';
}

# What a session is told of, by so many notifications, after a statement.
sub told
{
	my ($s, $sql, $n) = @_;
	my $told = '';

	poll_until('notifications', sub {
		$s->rows($sql);
		$sql = 'SELECT';
		$told .= join("\n", map { join('|', @$_) } @{ $s->{rows} }) . "\n";
		return (() = $told =~ /Asynchronous notification/g) >= $n });
	return $told;
}

my %encodings = (
	latin1 => [ 'LATIN1', '\xe9e4ff' ],
	ascii => [ 'SQL_ASCII', '\xe9e4ff' ],
	eucjp => [ 'EUC_JP', '\xc6fccbdc' ],
	utf8 => [ 'UTF8', '\xe697a5f09f9880' ]);

foreach my $db (sort keys %encodings)
{
	my ($encoding, $bytes) = @{ $encodings{$db} };
	odd_database($db, $encoding, $bytes);
	my $s = narad_session($node, $db);
	$s->rows("SET client_min_messages = error; SET client_encoding = '$encoding'");

	# A message, with all that it may have.
	$s->rows(q{SELECT narad.create_topic(topic('t'), partitions => 8, ordering => 'key')});
	is($s->value(q{SELECT count(*) FROM pg_class WHERE relname = called('t') AND relnamespace = quote_ident(called('s'))::regnamespace}),
		1, "$db: a topic of any name");
	$s->rows(q{SELECT narad.create_group(topic('t'), called('g')), narad.create_group(topic('t'), called('h'))});
	$s->rows(q{CREATE TABLE made AS SELECT narad.produce(topic('t'), to_jsonb(called('v')), key => called('k'),
		headers => jsonb_build_object(called('h'), called('w')), dedup_id => called('d')) AS position});
	is($s->value(q{SELECT position = (SELECT narad.produce(topic('t'), '1', dedup_id => called('d'))) FROM made}), 't',
		"$db: a deduplication id is known");
	is($s->value(q{SELECT duplicate FROM narad.produce_once(topic('t'), to_jsonb(called('once')), called('p'), 1, key => called('k'))}), 'f',
		"$db: a producer");
	is($s->value(q{SELECT duplicate FROM narad.produce_once(topic('t'), '1', called('p'), 1)}), 't', "$db: ... is known");
	is($s->value(q{SELECT duplicate FROM narad.produce_once(topic('t'), '2', called('q'), 1, key => called('l'))}), 'f', "$db: ... another is not");
	$s->rows(q{CREATE TABLE got AS SELECT * FROM narad.consume(topic('t'), 10, consumer_group => called('g'))});
	is($s->value(q{SELECT count(*) FROM got WHERE key = called('k') AND value = to_jsonb(called('v'))
		AND headers = jsonb_build_object(called('h'), called('w'))}), 1, "$db: key, value and headers come as they were");
	is($s->value(q{SELECT count(*) FROM got WHERE value = to_jsonb(called('once'))}), 0, "$db: ... the second of the key does not yet");
	is($s->value(q{SELECT count(*) FROM narad.fetch(topic('t'), (SELECT (position).partition FROM made), 0)
		WHERE key = called('k')}), 2, "$db: one key, one partition");
	is($s->value(q{SELECT string_agg(DISTINCT consumer_group, '' ORDER BY consumer_group) = called('g') || called('h')
		FROM narad.groups WHERE topic = topic('t')::regclass}), 't', "$db: groups are shown by their names");
	is($s->value(q{SELECT count(*) FROM narad.leases WHERE consumer_group = called('g')}), 2, "$db: ... and their leases");
	$s->rows(q{SELECT narad.pause_group(topic('t'), called('h'))});
	is($s->value(q{SELECT count(*) FROM narad.consume(topic('t'), consumer_group => called('h'))}), 0, "$db: one of them is paused");
	is(state_of($s, q{SELECT narad.consume(topic('t'), consumer_group => called('i'))}), '42704', "$db: a third there is not");
	# (In transactions that write, so that no crash undoes it.)
	$s->rows(q{CREATE TABLE acked AS SELECT accepted FROM narad.try_ack((SELECT array_agg(receipt) FROM got))});
	is($s->value(q{SELECT value = to_jsonb(called('once')) FROM narad.consume(topic('t'), 10, consumer_group => called('g'))}), 't',
		"$db: after an ack it does");

	# A dead letter, appended by an INSERT: names and reason are in its headers; a long
	# one is cut between characters.
	$s->rows(q{SELECT narad.create_topic(topic('l'));
		SELECT narad.create_topic(topic('m'), max_deliveries => 1, dead_letter_topic => topic('l'));
		DO $$ BEGIN EXECUTE format('ALTER TABLE %s ADD %I text DEFAULT odd(), ADD CHECK (key IS NULL)', topic('l'), called('c')); END $$;
		SELECT narad.create_group(topic('m'), called('g'));
		SELECT narad.produce_batch(topic('m'), '{1,2,3,4}', headers => ARRAY[jsonb_build_object(called('h'), called('w')), to_jsonb(odd()), to_jsonb(odd()), '{}']);
		SELECT narad.nack(receipt, reason => reason(msg_offset)) FROM narad.consume(topic('m'), 4, consumer_group => called('g'))});
	$s->rows(q{CALL until(format('count(*) = 4 FROM %s', topic('l')))});
	is($s->value(q{SELECT count(*) FROM narad.fetch(topic('l'), 0, 0) WHERE headers->>'narad-origin-topic' = topic('m')
		AND headers->>'narad-origin-group' = called('g')
		AND starts_with(reason((headers->>'narad-origin-offset')::bigint), headers->>'narad-reason')
		AND length(convert_to(headers->>'narad-reason', getdatabaseencoding())) BETWEEN 197 AND 200}), 4, "$db: dead letters say whence they come, and why")
	  or diag($s->value(q{SELECT string_agg(headers::text, ' ') FROM narad.fetch(topic('l'), 0, 0)}));
	is($s->value(q{SELECT count(*) FROM narad.fetch(topic('l'), 0, 0) WHERE headers->>called('h') = called('w') OR headers->>'narad-headers' = odd()}), 3,
		"$db: ... and keep their headers");

	# Texts as bytes: what the encoding allows.
	$s->rows(q{SELECT narad.create_topic(topic('x'), value_type => 'text'); SELECT narad.create_topic(topic('y'), value_type => 'bytea');
		SELECT narad.produce_bytes(t, convert_to(called('v'), getdatabaseencoding()), key => odd()) FROM (VALUES (topic('x')::regclass), (topic('y')::regclass)) v (t)});
	is($s->value(qq{SELECT value = convert_to(called('v'), getdatabaseencoding()) AND key = odd() FROM narad.consume_bytes(topic('$_'))}), 't',
		"$db: a text goes in and out as bytes, $_") foreach ('x', 'y');
	is(state_of($s, q{SELECT narad.produce_bytes(topic('x'), '\xff80')}), $encoding =~ /^(LATIN1|SQL_ASCII)$/ ? '00000' : '22021',
		"$db: bytes that are no text in UTF8");
	is(state_of($s, q{SELECT narad.produce_bytes(topic('x'), '\x610062')}), '22021', "$db: nor is a zero");
	is(state_of($s, q{SELECT narad.produce_batch_bytes(topic('x'), ARRAY['ok', '\x00']::bytea[])}), '22021', "$db: ... in a batch neither");
	is(state_of($s, q{SELECT narad.produce_bytes(topic('y'), '\xff00')}), '00000', "$db: where bytes are wanted, all are right");

	# Escapes that the server cannot turn into a character of the encoding.
	my $end = q{SELECT sum(end_offset) FROM narad.offsets(topic('t'))};
	my $before = $s->value($end);
	my %escape = (latin1 => '22P05', ascii => '0A000', eucjp => '22P05', utf8 => '00000');
	my $escaped = $db eq 'eucjp' ? '\ud83d\ude00' : '\u65e5';
	is(state_of($s, qq{SELECT narad.produce(topic('t'), '"$escaped"')}), $escape{$db}, "$db: an escape of a character that it has not, or has");
	is(state_of($s, qq{SELECT narad.produce(topic('t'), '1', headers => '{"$escaped": 1}')}), $escape{$db}, "$db: ... in headers");
	is(state_of($s, qq{SELECT narad.produce_array(topic('t'), '[1, "$escaped"]')}), $escape{$db}, "$db: ... in an array");
	is($s->value($end) - $before, $db eq 'utf8' ? 4 : 0, "$db: what was refused is not there");
	is($s->value(q{SELECT value = '"\u0041"' FROM narad.consume(topic('y2')) WHERE narad.ack(receipt) IS NOT NULL}), 't', "$db: an escape of one that all have")
	  if $s->rows(q{SELECT narad.create_topic(topic('y2')); SELECT narad.produce(topic('y2'), '"\u0041"')});

	# A channel: the worker notifies who has left a token, by the name he gave.
	$s->rows(q{DO $$ BEGIN EXECUTE format('LISTEN %I', called('C')); EXECUTE 'LISTEN "MixedCase"'; END $$});
	$s->rows(qq{SELECT narad.consume(topic('y2'), notify => $_)}) foreach (q{called('C')}, q{'MixedCase'});
	my $name = pack('H*', $s->value(q{SELECT encode(convert_to(called('C'), getdatabaseencoding()), 'hex')}));
	my $told = told($s, q{SELECT narad.produce(topic('y2'), '1'), narad.produce(topic('y2'), '2')}, 2);
	ok(index($told, "Asynchronous notification \"$name\" received") >= 0, "$db: ... on a channel of any name");
	like($told, qr/Asynchronous notification "MixedCase" received/, "$db: ... and on one in mixed case");

	is($s->value(qq{SELECT count(*) FROM narad.topics, narad.verify(topic) v}), 0, "$db: verify finds nothing");
	$s->quit;
}

# All of that is in the WAL, and on disk.
$node->stop('immediate');
$node->start;
foreach my $db (sort keys %encodings)
{
	my $s = narad_session($node, $db);
	$s->rows("SET client_encoding = '$encodings{$db}[0]'");
	is($s->value(q{SELECT position = (SELECT narad.produce(topic('t'), '1', dedup_id => called('d'))) FROM made}), 't',
		"$db, after a crash: a deduplication id is known");
	is($s->value(q{SELECT duplicate FROM narad.produce_once(topic('t'), '1', called('p'), 1)}), 't', "$db, after a crash: a producer, too");
	is($s->value(q{SELECT string_agg((value = to_jsonb(called('once')))::text, '') FROM narad.consume(topic('t'), 10, consumer_group => called('g'))
		WHERE key = called('k')}), 'true', "$db, after a crash: what was not settled comes");
	is($s->value(q{SELECT count(*) FROM narad.consume(topic('t'), consumer_group => called('h'))}), 0, "$db, after a crash: a group is paused");
	$s->quit;
}

# A dump of one is restored in another encoding: names and messages are the same
# characters, so groups go on where they were.
my $dump = PostgreSQL::Test::Utils::tempdir . '/latin1.sql';
my $content = q{SELECT count(*) || ' ' || md5(string_agg(convert_to(f.value || coalesce(f.key, ''), 'UTF8'), '' ORDER BY o.partition, f.msg_offset))
	FROM narad.offsets(topic('t')) o, narad.fetch(topic('t'), o.partition, 0) f};
ok($node->poll_query_until('latin1', q{SELECT sum(saved) = sum(frontier + 1) FROM narad.groups g, narad.saved_frontiers s,
	unnest(frontiers) WITH ORDINALITY u (saved, n) WHERE g.topic = topic('t')::regclass AND s.topic = g.topic
	AND s.consumer_group = g.consumer_group AND n = partition + 1}), 'frontiers are saved');
$node->run_log([ 'pg_dump', '-f', $dump, $node->connstr('latin1') ]);
$node->safe_psql('postgres', q{CREATE DATABASE moved ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0});
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('moved'), '-f', $dump ], 'a dump in another encoding is restored');
is(one_value($node, $content, 'moved'), one_value($node, $content, 'latin1'), '... messages, too');
is(one_value($node, q{SELECT string_agg((value = to_jsonb(called('once')))::text, '') FROM narad.consume(topic('t'), 10, consumer_group => called('g'))
	WHERE key = called('k')}, 'moved'), 'true', '... a group goes on');
is(one_value($node, q{SELECT count(*) FROM narad.consume(topic('t'), consumer_group => called('h'))}, 'moved'), 0, '... another is paused');
is(one_value($node, q{SELECT count(*) FROM narad.topics, narad.verify(topic) v}, 'moved'), 0, '... verify finds nothing');

# ---- search_path ----------------------------------------------------------------

# All of the server's operators and plain functions, and types and tables by names
# that are used often, in front of the real ones: each says so when it is used.
$node->safe_psql('postgres', 'CREATE DATABASE shadowed');
$node->safe_psql('shadowed', q{
CREATE SCHEMA evil;
SET search_path = pg_catalog;
CREATE FUNCTION evil.no() RETURNS bool VOLATILE LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a shadow was used'; END $$;
DO $do$
DECLARE
	f record;
BEGIN
	FOR f IN SELECT 'op' || o.oid AS function, oprname, oprresult::regtype AS result, oprleft::regtype AS l, oprright::regtype AS r
		FROM pg_operator o JOIN pg_type a ON a.oid = oprleft JOIN pg_type b ON b.oid = oprright JOIN pg_type c ON c.oid = oprresult
		WHERE oprnamespace = 'pg_catalog'::regnamespace AND a.typtype = 'b' AND b.typtype = 'b' AND c.typtype = 'b'
	LOOP
		EXECUTE format('CREATE FUNCTION evil.%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.no(); END $$',
			f.function, f.l, f.r, f.result);
		EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.%s)', f.oprname, f.l, f.r, f.function);
	END LOOP;
	FOR f IN SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS arguments, prorettype::regtype AS result
		FROM pg_proc p JOIN pg_type r ON r.oid = prorettype
		WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND NOT proretset AND provariadic = 0 AND r.typtype = 'b'
			AND p.proargmodes IS NULL
			AND NOT EXISTS (SELECT FROM unnest(proargtypes) t JOIN pg_type a ON a.oid = t WHERE a.typtype <> 'b')
			AND NOT EXISTS (SELECT FROM unnest(proargtypes::oid[] || prorettype) t
				WHERE t <> ALL ('{bool,int2,int4,int8,text,name,bytea,jsonb,oid,regclass,interval,timestamptz,float8,text[],jsonb[]}'::regtype[]))
	LOOP
		EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.no(); END $$',
			f.proname, f.arguments, f.result);
	END LOOP;
	FOREACH f.proname IN ARRAY '{bool,int2,int4,int8,text,name,bytea,jsonb,oid,regclass,interval,timestamptz,float8}'::text[] LOOP
		EXECUTE format('CREATE DOMAIN evil.%I AS pg_catalog.%I CHECK (evil.no())', f.proname, f.proname);
	END LOOP;
	FOREACH f.proname IN ARRAY '{pg_class,pg_type,pg_proc,pg_namespace,pg_database,topic_settings,saved_frontiers,topic_template,topics,groups}'::text[] LOOP
		EXECUTE format('CREATE TABLE evil.%I ()', f.proname);
	END LOOP;
END $do$;
ALTER DATABASE shadowed SET search_path = evil, pg_catalog, public;
});
my $offset = -s $node->logfile;
my $s = narad_session($node, 'shadowed');
is(state_of($s, 'SELECT 1 + 1'), 'P0001', 'an operator is shadowed');
is(state_of($s, q{SELECT length('a')}), 'P0001', '... a function');
is(state_of($s, q{SELECT 'a'::text}), 'P0001', '... a type');
is(state_of($s, q{SELECT relname FROM pg_class}), '42703', '... a table');

# A statement for each call, with nothing in it but literals.  Topic "d" and the
# dead-letter topic are written to by INSERT, "d" by one that rules rewrite.
my $receipt = sub { return $s->value(q{SELECT receipt FROM narad.consume('public.t')}) };
my $n = 0;
foreach my $sql (
	q{CREATE EXTENSION narad},
	q{SELECT narad.create_topic('public.dead', value_type => 'pg_catalog.jsonb')},
	q{SELECT narad.create_topic('t', partitions => 1, retention => '1 day', retention_bytes => 1000000, visibility_timeout => '1 hour',
		max_deliveries => 100, dead_letter_topic => 'public.dead', retry_delay => '0', retry_backoff => 2, ordering => 'key', cleanup => 'settled',
		dedup_window => '1 min', max_in_flight => 100, max_acked_ahead => 100, segment_size => '256kB', segment_age => '1 hour')},
	q{SELECT narad.create_topic('public.t')},
	q{SELECT narad.create_topic('public.b', value_type => 'pg_catalog.bytea')},
	q{SELECT narad.create_topic('public.x', value_type => 'pg_catalog.text')},
	q{SELECT narad.create_topic('public.d')},
	q{ALTER TABLE public.d ADD COLUMN extra pg_catalog.text DEFAULT 'x'},
	q{ALTER TABLE public.dead ADD COLUMN extra pg_catalog.text DEFAULT 'x', ADD CHECK (value IS NOT NULL)},
	q{SELECT narad.alter_topic('public.t', partitions => 2, retention => '2 days', visibility_timeout => '1 hour', max_deliveries => 2,
		dead_letter_topic => 'public.dead', ordering => 'key', segment_size => '16MB', reset => '{retention_bytes,cleanup}')},
	q{SELECT narad.create_group('public.t', 'g', '2020-01-01')},
	q{SELECT narad.pause_group('public.t', 'g')}, q{SELECT narad.resume_group('public.t', 'g')},
	q{SELECT narad.produce('public.t', '{"a": 1}', 'k', '{"h": 1}', dedup_id => 'd')},
	q{SELECT narad.produce('public.t', '2', deliver_after => '1 ms')},
	q{SELECT narad.produce_batch('public.t', '{1,2,3}', keys => '{a,b,c}', headers => '{1,2,3}', dedup_ids => '{x,y,z}')},
	q{SELECT narad.produce_array('public.t', '[1, 2, 3]')},
	q{SELECT narad.produce_once('public.t', '1', 'p', 1)},
	(map { ($_,
		q{SELECT narad.produce('public.d', '1', 'k', '{}', deliver_after => '1 ms')}, q{SELECT narad.produce_batch('public.d', '{1,2}')},
		q{SELECT narad.produce_array('public.d', '[1, 2]')}, q{SELECT narad.produce_once('public.d', '1', 'p', 1)}) }
		q{SELECT}, q{CREATE RULE also AS ON INSERT TO public.d DO ALSO NOTIFY inserted}),
	q{SELECT narad.produce_bytes('public.b', 'abc'), narad.produce_batch_bytes('public.x', '{a,b}')},
	q{SELECT narad.produce_once_bytes('public.b', '1', 'p', 1)},
	q{SELECT narad.consume_bytes('public.b'), narad.consume_bytes('public.x', 10, wait => '1 ms', notify => 'c')},
	q{CALL narad.wait('public.t', '1 ms')},
	q{SELECT narad.ack('%s')}, q{SELECT narad.ack('{%s}'::pg_catalog.text[])}, q{SELECT narad.try_ack('{%s}')},
	q{SELECT narad.nack('%s', '1 ms', 'why')}, q{SELECT narad.nack('{%s}'::pg_catalog.text[])},
	q{SELECT narad.extend('%s', '1 hour')}, q{SELECT narad.extend('{%s}'::pg_catalog.text[])},
	q{SELECT narad.consume('public.t', ack => '{%s}')},
	q{SELECT narad.fetch('public.t', 0, 0), narad.fetch_bytes('public.b', 0, 0)},
	q{SELECT narad.offsets('public.t'), narad.offset_for_time('public.t', 0, '2020-01-01'), narad.offset_for_epoch('public.t', 0, 1)},
	q{SELECT narad.seek('public.t', 'g', 0, 0)}, q{SELECT narad.seek_to_time('public.t', 'g', '2020-01-01')},
	q{SELECT narad.verify('public.t')}, q{SELECT narad.apply_retention()}, q{SELECT narad.apply_retention('public.t')},
	(map { "SELECT * FROM narad.$_" } qw(topics partitions segments groups leases waiters)),
	q{INSERT INTO public.t (value) VALUES ('4')}, qq{COPY public.t (key, value) FROM STDIN;\nk\t5\n\\.}, q{VACUUM public.t}, q{ANALYZE public.t},
	q{SELECT narad.drop_group('public.t', 'g')}, q{SELECT narad.purge_topic('public.t')},
	# What the worker does then: a dead letter, a notification, saved frontiers.
	q{SELECT narad.alter_topic('public.t', max_deliveries => 1)},
	q{SELECT narad.produce('public.t', '"dead"')}, q{SELECT narad.nack('%s')},
	q{LISTEN told}, q{SELECT narad.consume_bytes('public.b', 10)}, q{SELECT narad.consume_bytes('public.b', notify => 'told')})
{
	is(state_of($s, $sql =~ /%s/ ? sprintf($sql, $receipt->()) : $sql), '00000', ++$n . ': ' . substr($sql =~ s/\s*\n.*//sr, 0, 70)) or diag($s->{error});
}

like(told($s, q{SELECT narad.produce_bytes('public.b', 'abc')}, 1), qr/Asynchronous notification "told"/, 'the worker sends a notification');
$s->rows('SET search_path = pg_catalog');
ok(poll_until('a dead letter', sub { $s->value(q{SELECT count(*) FROM public.dead WHERE value = '"dead"' AND extra = 'x'}) == 1 }),
	'... moves a dead letter');
ok(poll_until('saved frontiers', sub { $s->value(q{SELECT count(*) FROM narad.saved_frontiers WHERE topic = 'public.t'::regclass AND frontiers[1] > 0}) == 1 }),
	'... and saves frontiers');
is($s->value(q{SELECT string_agg(DISTINCT format_type(atttypid, -1), ' ' ORDER BY format_type(atttypid, -1)) FROM pg_attribute WHERE attnum > 0
	AND attrelid IN ('evil.t'::regclass, 'public.d'::regclass)}), 'bigint integer jsonb text timestamp with time zone',
	'columns are of the types of the server');
foreach my $sql (q{SELECT narad.drop_topic('public.t')}, q{DROP EXTENSION narad CASCADE})
{
	$s->rows('SET search_path = evil, pg_catalog');
	is(state_of($s, $sql), '00000', $sql) or diag($s->{error});
}
$s->quit;
is(scalar(() = slurp_file($node->logfile, $offset) =~ /ERROR:  a shadow was used/g), 3, 'no shadow was used but by the test itself');

logs_are_clean('names', $node);
done_testing();
