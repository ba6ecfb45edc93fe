# Copyright (c) 2026, the Narad authors
#
# I8: one slow party stops nobody else: a producer idle in its transaction, a
#     consumer idle after an ack, a message held back at the frontier, with
#     caps as small as they can be; a client that does not read what it is sent.
#     What is acknowledged ahead of a cap is taken.
# I2: an extended lease is kept past its first end.
# I4, I6: what was settled in a dead-letter topic does not reappear.
# Groups that fifty sessions make at once are made once, without an error.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use IO::Socket::UNIX;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('flow', conf => [ 'autovacuum = off', 'max_connections = 80' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION narad; CREATE TABLE effect (off bigint);');

$node->safe_psql('postgres', q{
CREATE PROCEDURE flow(topic regclass, most int, INOUT n int DEFAULT 0) LANGUAGE plpgsql AS $$
DECLARE
	r text;
BEGIN
	FOR i IN 1 .. most LOOP
		SELECT receipt INTO r FROM narad.consume(topic);
		EXIT WHEN r IS NULL;
		PERFORM narad.ack(r);
		COMMIT;
		n := n + 1;
	END LOOP;
END $$;
});

# Takes and acknowledges up to so many, one a transaction; returns how many came.
sub flow
{
	my ($topic, $most) = @_;
	return one_value($node, "CALL flow('$topic', $most)");
}

sub frontier
{
	return one_value($node, "SELECT frontier FROM narad.groups WHERE topic = '$_[0]'::regclass");
}

# ---- a producer idle in its transaction ---------------------------------------

foreach my $end ('COMMIT', 'ROLLBACK')
{
	my $topic = lc "producer_$end";
	$node->safe_psql('postgres', "SELECT narad.create_topic('$topic', max_acked_ahead => 1)");
	my $s = narad_session($node);
	$s->rows("BEGIN; SELECT narad.produce('$topic', '0')");
	$node->safe_psql('postgres', "SELECT count(*) FROM generate_series(1, 100) i, narad.produce('$topic', to_jsonb(i))");
	is(flow($topic, 200), 100, "producer idle, then $end: all others flow");
	cmp_ok(frontier($topic), '<', 0, '... and the frontier stays before its message');
	$s->rows($end);
	$s->quit;
	is(flow($topic, 10), $end eq 'COMMIT' ? 1 : 0, '... whose message comes if it commits');
	ok(poll_until('the frontier is at the end', sub { frontier($topic) == 100 }), '... and the frontier goes on');
}

# ---- a consumer idle after its ack, and what is held back at the frontier -----------

foreach my $end ('COMMIT', 'ROLLBACK', 'terminate')
{
	my $topic = lc "acker_$end";
	$node->safe_psql('postgres', "SELECT narad.create_topic('$topic', max_acked_ahead => 1);"
		  . " SELECT count(*) FROM generate_series(0, 100) i, narad.produce('$topic', to_jsonb(i))");
	my $s = narad_session($node);
	$s->rows("BEGIN; INSERT INTO effect VALUES (1);"
		  . " SELECT narad.ack(receipt) FROM narad.consume('$topic')");
	is(flow($topic, 200), 100, "acker idle, then $end: all others flow");
	if ($end eq 'terminate')
	{
		my $pid = one_value($node, "SELECT pid FROM narad.leases WHERE topic = '$topic'::regclass");
		$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 10000)");
		$s->{dead} = 1;
	}
	else
	{
		$s->rows($end);
	}
	$s->quit;
	is(flow($topic, 10), $end eq 'COMMIT' ? 0 : 1, '... and its message comes again unless it commits');
	ok(poll_until('the frontier is at the end', sub { frontier($topic) == 100 }), '... and the frontier goes on');
}

$node->safe_psql('postgres', q{
SELECT narad.create_topic('held', max_acked_ahead => 1);
SELECT count(*) FROM generate_series(0, 100) i, narad.produce('held', to_jsonb(i));
SELECT narad.nack(receipt, '1 hour') FROM narad.consume('held');
});
is(flow('held', 200), 100, 'one held back for an hour at the frontier: all others flow');

# Many more leases than may be acknowledged ahead, all but the lowest: each ack
# counts, and what is limited is what is handed out, which is nothing new; nor is
# anything handed out twice.
$node->safe_psql('postgres', q{
SELECT narad.create_topic('ahead', max_acked_ahead => 1, visibility_timeout => '1 hour');
SELECT count(*) FROM generate_series(0, 59) i, narad.produce('ahead', to_jsonb(i));
});
{
	my $s = narad_session($node);
	my $accepted = q{SELECT count(*) FILTER (WHERE accepted) FROM narad.try_ack((SELECT array_agg(receipt ORDER BY random())
		FROM r WHERE msg_offset %% 2 = %d AND msg_offset > 0))};
	my $given = q{SELECT count(*) FROM narad.consume('ahead', 100)};
	my $given_and_kept = q{WITH m AS (INSERT INTO r SELECT receipt, msg_offset, deliveries FROM narad.consume('ahead', 100) RETURNING *)
		SELECT count(*) || ' ' || min(msg_offset) || ' ' || max(msg_offset) || ' ' || max(deliveries) FROM m};

	$s->rows(q{CREATE TEMP TABLE r AS SELECT receipt, msg_offset, deliveries FROM narad.consume('ahead', 50)});
	foreach my $odd (1, 0)
	{
		is($s->value(sprintf($accepted, $odd)), $odd ? 25 : 24, 'acks far ahead of the cap are taken');
		is($s->value($given), 0, '... and nothing is handed out beyond');
	}
	is(frontier('ahead'), -1, 'the lowest holds the frontier');
	$s->rows(q{SELECT narad.nack(receipt) FROM r WHERE msg_offset = 0});
	is($s->value($given_and_kept), '1 0 0 2', '... and is all that comes, when it was given back');
	is($s->value($given), 0, '... once');
	$s->rows(q{SELECT narad.ack(receipt) FROM r WHERE msg_offset = 0 AND deliveries = 2});
	is(frontier('ahead'), 49, 'when it is settled the frontier goes on');
	is($s->value($given_and_kept), '10 50 59 1', '... and the others come, all for the first time');
	$s->rows(q{SELECT narad.ack(array_agg(receipt)) FROM r WHERE msg_offset >= 50});
	$s->quit;
}
is(frontier('ahead'), 59, 'and all is settled');

# ---- clients that do not read ------------------------------------------------------

# A connection without libpq, which would read whatever comes.
sub raw_connect
{
	my $socket = IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port) or die "connect: $!";
	my $parameters = pack('NZ*Z*Z*Z*C', 196608, 'user', getpwuid($<) . '', 'database', 'postgres', 0);
	my $pid;

	syswrite($socket, pack('N', length($parameters) + 4) . $parameters);
	while (1)
	{
		my ($kind, $body) = raw_message($socket);
		die "not connected: $body" if $kind eq 'E';
		$pid = unpack('N', $body) if $kind eq 'K';
		last if $kind eq 'Z';
	}
	return ($socket, $pid);
}

# A message of the server; nothing when it has closed the connection.
sub raw_message
{
	my ($socket) = @_;
	my $head = raw_bytes($socket, 5) // return;
	my ($kind, $length) = unpack('aN', $head);

	return ($kind, raw_bytes($socket, $length - 4));
}

sub raw_bytes
{
	my ($socket, $n) = @_;
	my $bytes = '';

	while (length($bytes) < $n)
	{
		sysread($socket, $bytes, $n - length($bytes), length($bytes)) or return undef;
	}
	return $bytes;
}

sub raw_send
{
	my ($socket, $sql) = @_;
	syswrite($socket, 'Q' . pack('NZ*', length($sql) + 5, $sql));
	return;
}

# Ten large messages, which fill a batch and any socket's buffer, and small ones.
my $fill_slow = q{
SELECT narad.create_topic('slow', visibility_timeout => '1 hour');
INSERT INTO slow (value) SELECT to_jsonb(repeat(md5(i::text), 12000)) FROM generate_series(0, 9) i;
INSERT INTO slow (value) SELECT to_jsonb(i) FROM generate_series(10, 19) i};
foreach my $end ('terminated', 'cancelled', 'gone')
{
	$node->safe_psql('postgres', $fill_slow);
	my ($socket, $pid) = raw_connect();
	my $waiter = narad_session($node);

	raw_send($socket, "SELECT * FROM narad.consume('slow', 10)");
	ok($node->poll_query_until('postgres', "SELECT wait_event = 'ClientWrite' FROM pg_stat_activity WHERE pid = $pid"),
		"$end: a client does not read what it is sent");
	is(one_value($node, q{SELECT count(*) FROM narad.leases WHERE topic = 'slow'::regclass}), 10, 'it has its leases');
	is(flow('slow', 100), 10, 'others are given all there is else');
	$waiter->send(q{SELECT count(*) FROM narad.consume('slow', 100, wait => '60 s')});
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM narad.waiters}), 'another waits');
	one_value($node, q{SELECT narad.produce('slow', '20')});
	$waiter->finish;
	is($waiter->{rows}[0][0], 1, 'and is given what comes');
	$waiter->send(q{SELECT count(*) || ' ' || max(deliveries) FROM narad.consume('slow', 100, wait => '60 s')});
	if ($end eq 'terminated')
	{
		is(one_value($node, "SELECT pg_terminate_backend($pid, 60000)"), 't', 'it is terminated');
	}
	elsif ($end eq 'cancelled')
	{
		my @kinds;

		# A cancel waits for the client to read; then it comes before the rest.
		one_value($node, "SELECT pg_cancel_backend($pid)");
		while ((my ($kind, $body) = raw_message($socket)))
		{
			push @kinds, $kind eq 'E' ? "E " . join(' ', $body =~ /\0C(\w+)\0/) : $kind;
			last if $kind eq 'Z';
		}
		is($kinds[-2], 'E 57014', 'it is told so when it reads');
		cmp_ok(scalar(grep { $_ eq 'D' } @kinds), '<', 10, '... instead of the rest');
	}
	else
	{
		close($socket);
	}
	is($waiter->finish, '00000', 'who waits is woken');
	my ($n, $deliveries) = split(/ /, $waiter->{rows}[0][0]);
	is($deliveries, 2, '... and given what the other had');
	# They come back one by one, so the rest may come later.
	ok(poll_until('all have come', sub { ($n += one_value($node, q{SELECT count(*) FROM narad.consume('slow', 100)})) == 10 }),
		'... all of it');
	$waiter->quit;
	ok($node->poll_query_until('postgres', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)"), 'it is gone')
	  if $end ne 'cancelled';
	is(one_value($node, q{SELECT count(*) FROM narad.verify('slow')}), 0, 'verify finds nothing');
	$node->safe_psql('postgres', 'DROP TABLE slow');
}

# ---- an extended lease -----------------------------------------------------------

$node->safe_psql('postgres', q{SELECT narad.create_topic('extended'); SELECT narad.produce('extended', '1')});
{
	my $s = narad_session($node);
	my $receipt = $s->value(q{SELECT receipt FROM narad.consume('extended', visibility_timeout => '1 s')});
	$s->rows("SELECT narad.extend('$receipt', '1 hour')");
	is(one_value($node, q{SELECT count(*) FROM narad.consume('extended', wait => '1500 ms')}), 0,
		'an extended lease: nobody is given it past its first end');
	is($s->try("SELECT narad.ack('$receipt')"), '00000', 'and its receipt is good');
	$s->quit;
}
is(one_value($node, q{SELECT count(*) FROM narad.consume('extended')}), 0, 'it was delivered once');

# ---- settled dead letters ---------------------------------------------------------

$node->safe_psql('postgres', q{
SELECT narad.create_topic('letters');
SELECT narad.create_topic('work', max_deliveries => 1, dead_letter_topic => 'letters');
SELECT count(*) FROM generate_series(1, 20) i, narad.produce('work', to_jsonb(i));
SELECT count(narad.nack(receipt)) FROM narad.consume('work', 20);
});
ok(poll_until('all are moved', sub { one_value($node, 'SELECT count(*) FROM letters') == 20 }), 'dead letters are moved');
$node->safe_psql('postgres', q{BEGIN; INSERT INTO effect VALUES (2);
SELECT count(narad.ack(receipt)) FROM narad.consume('letters', 20); COMMIT});
foreach my $mode ('fast', 'immediate')
{
	$node->stop($mode);
	$node->start;
	is(one_value($node, q{SELECT count(*) FROM narad.consume('letters', 20, wait => '200 ms')}), 0,
		"settled dead letters stay settled after a stop: $mode");
	is(one_value($node, q{SELECT count(*) FROM letters}), 20, 'and none is moved twice');
}

# ---- groups made at once ----------------------------------------------------------

$node->safe_psql('postgres', q{
SELECT narad.create_topic('many', 4);
SELECT count(*) FROM generate_series(1, 50) i, narad.produce('many', to_jsonb(i), partition => i % 4);
});
{
	my @sessions = map { narad_session($node) } (1 .. 50);
	my @failed;
	foreach my $i (0 .. $#sessions)
	{
		$sessions[$i]->send("SELECT narad.create_group('many', 'g" . ($i % 5) . "');"
			  . " SELECT count(narad.ack(receipt)) FROM narad.consume('many', consumer_group => 'g" . ($i % 5) . "')");
	}
	foreach my $s (@sessions)
	{
		my $state = $s->finish;
		push @failed, $state unless $state eq '00000';
		$s->quit;
	}
	is("@failed", '', 'fifty sessions make five groups at once');
}
is(one_value($node, q{SELECT count(DISTINCT consumer_group) FROM narad.groups WHERE topic = 'many'::regclass AND consumer_group LIKE 'g_'}),
	5, 'five there are');
is(one_value($node, q{SELECT count(*) FROM narad.consume('many', 100, consumer_group => 'g3')}), 40,
	'and each message went to each of them once');

$node->stop;
log_is_clean($node, 'log');
done_testing();
