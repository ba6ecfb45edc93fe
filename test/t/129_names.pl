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
	$s->rows(q{SELECT narad.ack(array_agg(receipt)) FROM got});
	is($s->value(q{SELECT value = to_jsonb(called('once')) FROM narad.consume(topic('t'), 10, consumer_group => called('g')) WHERE narad.ack(receipt) IS NOT NULL}),
		't', "$db: after an ack it does");

	# A dead letter: names and reason are in its headers; a long one is cut between
	# characters.
	$s->rows(q{SELECT narad.create_topic(topic('l'));
		SELECT narad.create_topic(topic('m'), max_deliveries => 1, dead_letter_topic => topic('l'));
		SELECT narad.create_group(topic('m'), called('g'));
		SELECT narad.produce_batch(topic('m'), '{1,2}', headers => ARRAY[jsonb_build_object(called('h'), called('w')), to_jsonb(odd())]);
		SELECT narad.nack(receipt, reason => called('r') || repeat(odd() || '-', 200)) FROM narad.consume(topic('m'), 2, consumer_group => called('g'))});
	$s->rows(q{CALL until(format('count(*) = 2 FROM %s', topic('l')))});
	is($s->value(q{SELECT count(*) FROM narad.fetch(topic('l'), 0, 0) WHERE headers->>'narad-origin-topic' = topic('m')
		AND headers->>'narad-origin-group' = called('g')
		AND starts_with(called('r') || repeat(odd() || '-', 200), headers->>'narad-reason')
		AND octet_length(headers->>'narad-reason') BETWEEN 190 AND 4096}), 2, "$db: dead letters say whence they come, and why")
	  or diag($s->value(q{SELECT string_agg(headers::text, ' ') FROM narad.fetch(topic('l'), 0, 0)}));
	is($s->value(q{SELECT count(*) FROM narad.fetch(topic('l'), 0, 0) WHERE headers->>called('h') = called('w') OR headers->>'narad-headers' = odd()}), 2,
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
	my $told = '';
	my $sql = q{SELECT narad.produce(topic('y2'), '1'), narad.produce(topic('y2'), '2')};
	ok(poll_until("$db: notifications", sub {
		$s->rows($sql);
		$sql = 'SELECT 1';
		$told .= join("\n", map { join('|', @$_) } @{ $s->{rows} }) . "\n";
		return (() = $told =~ /Asynchronous notification/g) >= 2 }), "$db: notifications come");
	ok(index($told, "Asynchronous notification \"$name\" received") >= 0, "$db: ... on a channel of any name");
	like($told, qr/Asynchronous notification "MixedCase" received/, "$db: ... and on one in mixed case");

	is($s->value(qq{SELECT count(*) FROM narad.topics, narad.verify(topic) v}), 0, "$db: verify finds nothing");
	$s->quit;
}

# All of that is on disk: after a clean stop and after a crash.
foreach my $mode ('fast', 'immediate')
{
	$node->stop($mode);
	$node->start;
	foreach my $db (sort keys %encodings)
	{
		my $s = narad_session($node, $db);
		$s->rows("SET client_encoding = '$encodings{$db}[0]'");
		is($s->value(q{SELECT position = (SELECT narad.produce(topic('t'), '1', dedup_id => called('d'))) FROM made}), 't',
			"$db: an id is known after a stop: $mode");
		is($s->value(q{SELECT duplicate FROM narad.produce_once(topic('t'), '1', called('p'), 1)}), 't', "$db: ... and a producer");
		is($s->value(q{SELECT count(*) FROM narad.consume(topic('t'), 10, consumer_group => called('g')) WHERE key = called('k')}), 0,
			"$db: ... what a group has settled is");
		is($s->value(q{SELECT count(*) FROM narad.consume(topic('t'), consumer_group => called('h'))}), 0, "$db: ... and another is paused");
		$s->quit;
	}
}

logs_are_clean('names', $node);
done_testing();
