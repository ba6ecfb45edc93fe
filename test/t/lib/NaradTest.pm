# What the TAP tests share: a server with narad, and sessions that tell apart
# an error, a dead connection and a hang.
#
# Copyright (c) 2026, the Narad authors

package NaradTest;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

our @EXPORT = qw(narad_node narad_session poll_until one_value try_once flush_wal create_helpers
  log_is_clean logs_are_clean start_after_kill topic_hash sql_array
  create_work work_is_exact all_findings);

# Gives a stopped server's node: UTF8, with checksums, narad loaded, the given
# lines added to its postgresql.conf.  "streaming" readies it for standbys.
sub narad_node
{
	my ($name, %opt) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	# Settings may come before init's own, so that of equal names ours win.
	$node->init(
		extra => [ '--data-checksums', '--encoding=UTF8', '--locale=C' ],
		allows_streaming => $opt{streaming} ? 1 : 0);
	$node->append_conf('postgresql.conf',
		join("\n", "shared_preload_libraries = 'narad'",
			'log_statement = none', 'log_autovacuum_min_duration = -1',
			'max_connections = 40', @{ $opt{conf} || [] }));
	return $node;
}

sub narad_session
{
	return NaradTest::Session->new(@_);
}

# Waits for a condition, which is a piece of code.  False after the time-out.
sub poll_until
{
	my ($what, $code) = @_;
	my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $deadline)
	{
		return 1 if $code->();
		select(undef, undef, undef, 0.02);
	}
	diag("timed out waiting until $what");
	return 0;
}

# The single value a query gives; dies of an error.
sub one_value
{
	my ($node, $sql, $db) = @_;
	return $node->safe_psql($db || 'postgres', $sql);
}

# SQLSTATE and rows of a statement in a session of its own.
sub try_once
{
	my ($node, $sql) = @_;
	my $s = narad_session($node);
	my $state = $s->try("SET client_min_messages = error; $sql") // 'connection lost';
	my @rows = map { join('|', @$_) } @{ $s->{rows} };
	$s->quit;
	return ($state, @rows);
}

# What has been written so far survives a crash.  A transaction that only has an id
# flushes nothing.
sub flush_wal
{
	my ($node) = @_;
	$node->safe_psql('postgres', q{SELECT pg_logical_emit_message(true, 'flush', '')});
	return;
}

# Starts a server whose postmaster was killed, as soon as its processes are gone.
sub start_after_kill
{
	my ($node, @pids) = @_;
	poll_until('the processes of the killed server are gone',
		sub { !grep { kill(0, $_) } @pids })
	  or return 0;
	return $node->start;
}

# A text array literal.
sub sql_array
{
	return 'ARRAY[' . join(',', map { "'$_'" } @_) . ']::text[]';
}

# The server's log tells of no crash that the test did not make, and of no
# page that differs after replay.
sub log_is_clean
{
	my ($node, $name, %opt) = @_;
	my $log = slurp_file($node->logfile, $opt{offset} || 0);
	my @bad = grep {
		/PANIC:|TRAP:|inconsistent page|page verification failed|invalid page/
		  || (/was terminated by signal \d+/
			&& !($opt{kills} && /signal 9: Killed/))
	} split(/\n/, $log);

	is(scalar(@bad), 0, $name) or diag(join("\n", @bad[ 0 .. min_of(9, $#bad) ]));
	return;
}

sub logs_are_clean
{
	my ($name, @nodes) = @_;
	log_is_clean($_, "$name: log of " . $_->name) foreach @nodes;
	return;
}

sub min_of
{
	my ($a, $b) = @_;
	return $a < $b ? $a : $b;
}

# Functions for the tests, in a schema of their own so that they survive what
# a test does to "public".  pad() does not compress; nt.msg_ok() proves a
# value whole from its id and length.
sub create_helpers
{
	my ($node, $db) = @_;
	$node->safe_psql($db || 'postgres', q{
CREATE SCHEMA IF NOT EXISTS nt;
CREATE FUNCTION nt.pad(id text, n int) RETURNS text
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql AS $$
	SELECT left(string_agg(md5(id || ':' || i), '' ORDER BY i), n)
	FROM generate_series(0, n / 32) i $$;
CREATE FUNCTION nt.msg(id text, round int, n int) RETURNS jsonb
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql AS $$
	SELECT jsonb_build_object('id', id, 'r', round, 'n', n, 'pad', nt.pad(id, n)) $$;
CREATE FUNCTION nt.msg_ok(v jsonb) RETURNS boolean
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql AS $$
	SELECT v->>'pad' = nt.pad(v->>'id', (v->>'n')::int) $$;
-- Everything of a partition that fetch() gives, call by call; an error if the
-- offsets are not strictly increasing.
CREATE FUNCTION nt.fetch_all(topic regclass, part int)
RETURNS TABLE (msg_offset bigint, value jsonb) LANGUAGE plpgsql AS $$
DECLARE
	pos bigint;
	fin bigint;
	n int;
BEGIN
	SELECT o.earliest, o.last_stable INTO pos, fin
	FROM narad.offsets(topic) o WHERE o.partition = part;
	WHILE pos < fin LOOP
		n := 0;
		FOR msg_offset, value IN
			SELECT f.msg_offset, f.value
			FROM narad.fetch(topic, part, pos, 200) f
		LOOP
			IF msg_offset < pos THEN
				RAISE 'fetch gave offset % after %', msg_offset, pos - 1;
			END IF;
			pos := msg_offset + 1;
			n := n + 1;
			RETURN NEXT;
		END LOOP;
		EXIT WHEN n = 0;
	END LOOP;
END $$;
-- One line that stands for all of a topic's content, read by a scan.
CREATE FUNCTION nt.scan_hash(topic regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	h text;
BEGIN
	EXECUTE format('SELECT count(*) || '' '' || coalesce(md5(string_agg(
		md5(t::text), '''' ORDER BY partition, msg_offset)), ''-'') FROM %s t', topic)
	INTO h;
	RETURN h;
END $$;
-- And by fetch().
CREATE FUNCTION nt.fetch_hash(topic regclass) RETURNS text LANGUAGE sql AS $$
	SELECT count(*) || ' ' || coalesce(md5(string_agg(
		o.partition || ':' || f.msg_offset || ':' || md5(f.value::text), ''
		ORDER BY o.partition, f.msg_offset)), '-')
	FROM narad.offsets(topic) o, nt.fetch_all(topic, o.partition) f $$;
});
	return;
}

# Hashes of every topic's content, a line each, by scans and by fetch (for
# topics of jsonb).  Topics are found in the catalog, for a standby to answer.
sub topic_hash
{
	my ($node, $db) = @_;
	return $node->safe_psql($db || 'postgres', q{
SELECT c.oid::regclass, nt.scan_hash(c.oid),
	CASE WHEN a.atttypid = 'jsonb'::regtype THEN nt.fetch_hash(c.oid) END
FROM pg_class c JOIN pg_am am ON am.oid = c.relam
	JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'value'
WHERE am.amname = 'narad' AND c.relkind = 'r' AND c.relpersistence = 'p'
ORDER BY c.oid::regclass::text COLLATE "C"});
}

# A topic "q" with two groups, and a procedure that produces to it and consumes
# from it, in transactions that write down what they produced and acked, one in
# five of which rolls back; and topics churn0 to churn7 with a procedure that
# fills them and has retention cut their files.
sub create_work
{
	my ($node) = @_;
	$node->safe_psql('postgres', q{
CREATE EXTENSION narad;
SELECT narad.create_topic('q', partitions => 3, visibility_timeout => '1 hour', segment_size => '256kB',
	max_in_flight => 1000000, max_acked_ahead => 1000000);
SELECT narad.create_group('q', 'second');
CREATE TABLE produced (partition int, msg_offset bigint);
CREATE TABLE effect (consumer_group text, partition int, msg_offset bigint, value jsonb);
-- With a pause after each round, where it is a load that runs until it is
-- cancelled, as copies have to replay all this.
CREATE PROCEDURE work(rounds int, pause float8 DEFAULT 0) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. rounds LOOP
		INSERT INTO produced
		SELECT * FROM narad.produce('q', to_jsonb(repeat(md5(i::text), 20)), key => (i % 7)::text);
		INSERT INTO effect SELECT 'default', m.partition, m.msg_offset, m.value
		FROM narad.consume('q', 2) m, LATERAL narad.try_ack(ARRAY[m.receipt]) a WHERE a.accepted;
		IF i % 5 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
		INSERT INTO effect SELECT 'second', m.partition, m.msg_offset, m.value
		FROM narad.consume('q', 1, consumer_group => 'second') m, LATERAL narad.try_ack(ARRAY[m.receipt]) a
		WHERE a.accepted;
		COMMIT;
		PERFORM pg_sleep(pause);
	END LOOP;
END $$;
CREATE TABLE filled (topic regclass, first bigint, next bigint);
CREATE FUNCTION fill(t regclass, n int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	base bigint := (SELECT end_offset FROM narad.offsets(t) WHERE partition = 0);
BEGIN
	EXECUTE format('INSERT INTO %s (value) SELECT to_jsonb(rpad((%s + i) || ''.'', 900, ''x''))'
		' FROM generate_series(0, %s) i', t, base, n - 1);
	INSERT INTO filled VALUES (t, base, base + n);
	RETURN base + n;
END $$;
-- What is not in its place, or missing though retention keeps it.
CREATE FUNCTION fill_finding(t regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	there bigint[];
	wrong text;
	missing text;
BEGIN
	EXECUTE format('SELECT array_agg(msg_offset), string_agg(msg_offset || '' is wrong'', '', '')'
		' FILTER (WHERE (value #>> ''{}'') NOT LIKE msg_offset || ''.%%'') FROM %s', t) INTO there, wrong;
	SELECT string_agg(o || ' is missing', ', ') INTO missing
	FROM (SELECT generate_series(greatest(first, (SELECT earliest FROM narad.offsets(t))), next - 1) AS o
		FROM filled WHERE topic = t EXCEPT SELECT unnest(there)) m;
	RETURN concat_ws(', ', wrong, missing);
END $$;
SELECT narad.create_topic('churn' || i, segment_size => '256kB', retention_bytes => 3000000)
FROM generate_series(0, 7) i;
SELECT fill(('churn' || i)::regclass, 2500) FROM generate_series(0, 7) i;
CREATE PROCEDURE churn(rounds int, pause float8 DEFAULT 0) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 0 .. rounds - 1 LOOP
		PERFORM narad.alter_topic(('churn' || i % 8)::regclass, retention_bytes => 100000);
		PERFORM fill(('churn' || i % 8)::regclass, 300);
		COMMIT;
		PERFORM narad.apply_retention(('churn' || i % 8)::regclass);
		COMMIT;
		PERFORM pg_sleep(pause);
	END LOOP;
END $$;
});
	return;
}

# On any copy of that server that takes writes: what is there is what was written
# down.  What was acked is settled, once, and all else that is committed comes.
sub work_is_exact
{
	my ($node, $name) = @_;
	is(one_value($node, q{SELECT count(*) FROM
((TABLE produced EXCEPT ALL SELECT partition, msg_offset FROM q)
UNION ALL (SELECT partition, msg_offset FROM q EXCEPT ALL TABLE produced)) d}),
		0, "$name: exactly the messages that committed are there");
	is(one_value($node, 'SELECT count(*) FROM narad.leases'), 0, "$name: no lease is left");
	foreach my $group ('default', 'second')
	{
		$node->safe_psql('postgres', "DROP TABLE IF EXISTS rest; CREATE TABLE rest AS SELECT partition, msg_offset, value"
			  . " FROM narad.consume('q', 100000, consumer_group => '$group')");
		is(one_value($node, "SELECT count(*) - count(DISTINCT (partition, msg_offset)) FROM effect"
				  . " WHERE consumer_group = '$group'"), 0, "$name, $group: no message took effect twice");
		is(one_value($node, "SELECT count(*) FROM rest JOIN effect USING (partition, msg_offset)"
				  . " WHERE consumer_group = '$group'"), 0, "$name, $group: none whose effect is there comes again");
		is(one_value($node, "SELECT count(*) FROM q WHERE NOT EXISTS (SELECT FROM rest r"
				  . " WHERE r.partition = q.partition AND r.msg_offset = q.msg_offset AND r.value = q.value)"
				  . " AND NOT EXISTS (SELECT FROM effect e WHERE e.consumer_group = '$group'"
				  . " AND e.partition = q.partition AND e.msg_offset = q.msg_offset AND e.value = q.value)"),
			0, "$name, $group: all others come");
	}
	is(all_findings($node), '', "$name: verify finds nothing");
	is(one_value($node, q{SELECT string_agg(t || ': ' || f, '; ')
FROM (SELECT ('churn' || i)::regclass AS t FROM generate_series(0, 7) i) t, fill_finding(t) f WHERE f <> ''}),
		'', "$name: what retention keeps is there, in its place");
	my $end = one_value($node, "SELECT max(msg_offset) + 1 FROM q WHERE partition = 0");
	cmp_ok(one_value($node, "SELECT msg_offset FROM narad.produce('q', '1', partition => 0)"), '>=', $end,
		"$name: offsets go on");
	$node->safe_psql('postgres', 'INSERT INTO produced SELECT partition, msg_offset FROM q EXCEPT ALL TABLE produced');
	return;
}

# What narad.verify has to say of all topics that have a name of their own.
sub all_findings
{
	my ($node, $db) = @_;
	return one_value($node, q{SELECT string_agg(topic || ' ' || v::text, '; ') FROM narad.topics, narad.verify(topic) v},
		$db);
}

package NaradTest::Session;

use IO::Handle;
use IO::Select;
use IPC::Open3 ();
use Symbol ();
use Time::HiRes qw(time);

my $nmarker = 0;

# A psql of its own process.  Its methods never end the test: a test in a
# forked child may use them.
sub new
{
	my ($class, $node, $db) = @_;
	my ($in, $out);
	my $err = Symbol::gensym();
	local $SIG{PIPE} = 'IGNORE';

	my $pid = IPC::Open3::open3($in, $out, $err, 'psql', '-XAtq',
		'-F', '|', '-v', 'ON_ERROR_STOP=0', '-d',
		$node->connstr($db || 'postgres'), '-f', '-');
	$in->autoflush(1);
	binmode($_) foreach ($in, $out, $err);
	return bless {
		pid => $pid,
		owner => $$,
		in => $in,
		out => $out,
		err => $err,
		select => IO::Select->new($out, $err),
		buffer => '',
		errors => '',
		error => '',
	}, $class;
}

# Sends a statement; its answer is read by finish().
sub send
{
	my ($self, $sql) = @_;
	local $SIG{PIPE} = 'IGNORE';

	$self->{marker} = sprintf('~%d.%d~', $$, ++$nmarker);
	return if $self->{dead};
	# In-line COPY data ends by itself; an empty statement would hide its error.
	my $end = $sql =~ /^\\\.$/m ? '' : ';';
	my $text = "$sql\n$end\n\\echo $self->{marker} :SQLSTATE :LAST_ERROR_MESSAGE\n";
	while (length($text))
	{
		my $n = syswrite($self->{in}, $text);
		if (!defined $n)
		{
			next if $!{EINTR};
			$self->{dead} = 1;
			return;
		}
		substr($text, 0, $n) = '';
	}
	return;
}

# Waits for the answer.  Returns its SQLSTATE ("00000" is success), or
# undef when the connection is gone.  The rows, as references to arrays, are
# in $self->{rows}, the message of the last error in $self->{error}.  Dies
# when there is none in time.
sub finish
{
	my ($self, $seconds) = @_;
	my $deadline = time() + ($seconds || $PostgreSQL::Test::Utils::timeout_default);
	my $marker = $self->{marker};

	$self->{rows} = [];
	while (!$self->{dead})
	{
		my $at = rindex($self->{buffer}, $marker);
		if ($at >= 0 && substr($self->{buffer}, $at) =~ /^\S+ (\S+) ?(.*)\n/)
		{
			my ($state, $message) = ($1, $2);
			my $text = substr($self->{buffer}, 0, $at);
			$self->{buffer} = '';
			$self->{error} = $message if $state ne '00000';
			$self->{rows} =
			  [ map { [ split(/\|/, $_, -1) ] } split(/\n/, $text) ];
			return $state;
		}
		my $left = $deadline - time();
		die "no answer in time" if $left <= 0;
		$self->pump($left);
	}
	return undef;
}

# Reads what psql has written, waiting for it some seconds at most.
sub pump
{
	my ($self, $seconds) = @_;
	my @ready = $self->{select}->can_read($seconds);

	foreach my $handle (@ready)
	{
		my $which = $handle == $self->{out} ? 'buffer' : 'errors';
		my $n = sysread($handle, $self->{$which}, 65536, length($self->{$which}));
		next if !defined $n && $!{EINTR};
		$self->{dead} = 1 unless $n;
	}
	# psql can see its connection end and still wait for something.
	$self->{dead} = 1
	  if $self->{errors} =~ /server closed the connection|connection to server was lost/;
	$self->{errors} = substr($self->{errors}, -10000) if length($self->{errors}) > 20000;
	return scalar(@ready);
}

# True when finish() would not wait.
sub answered
{
	my ($self) = @_;
	while (!$self->{dead} && $self->pump(0)) { }
	return $self->{dead} || rindex($self->{buffer}, $self->{marker}) >= 0;
}

# One statement; as finish().
sub try
{
	my ($self, $sql, $seconds) = @_;
	$self->send($sql);
	return $self->finish($seconds);
}

# One statement that has to succeed; the rows.
sub rows
{
	my ($self, $sql, $seconds) = @_;
	my $state = $self->try($sql, $seconds);

	die "connection lost in: $sql" unless defined $state;
	die "$state $self->{error} in: $sql" if $state ne '00000';
	return @{ $self->{rows} };
}

# The first column of the first row.
sub value
{
	my ($self, $sql, $seconds) = @_;
	my @rows = $self->rows($sql, $seconds);
	return @rows ? $rows[0][0] : undef;
}

sub backend_pid
{
	my ($self) = @_;
	$self->{backend} ||= $self->value('SELECT pg_backend_pid()');
	return $self->{backend};
}

sub quit
{
	my ($self) = @_;
	return unless $self->{pid};
	local ($?, $!);
	kill('KILL', $self->{pid}) if $self->{dead};
	close($self->{in});
	waitpid($self->{pid}, 0);
	close($_) foreach ($self->{out}, $self->{err});
	$self->{pid} = 0;
	return;
}

sub DESTROY
{
	my ($self) = @_;
	# A forked copy must leave its parent's psql alone.
	return unless $self->{pid} && ($self->{owner} || $$) == $$;
	$self->quit;
	return;
}

1;
