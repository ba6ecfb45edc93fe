# Copyright (c) 2026, the Narad authors
#
# I1, I3, I5, I6: crashes, and ends of sessions, at the moments that matter:
# between the journal entry of an ack and the commit of its transaction, between
# that commit and its effect on memory, in the middle of a large record, while
# the next pages are prepared, between claim and delivery.
#
# A session is held at a stop point; others work, so that pages and WAL with
# what it did so far are on disk; then the server crashes, or the session is
# terminated.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

plan skip_all => 'the library has no stop points' unless $ENV{NARAD_TESTING};

my $node = narad_node('points',
	conf => [ 'autovacuum = off', "narad.frontier_write_interval = '20ms'" ]);
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION narad;
CREATE TABLE effect (what text);
});
$node->safe_psql('postgres', slurp_file("$FindBin::RealBin/../narad_test/narad_test.sql"));
create_helpers($node);

sub fresh_topic
{
	my ($t, $n) = @_;
	$node->safe_psql('postgres', "SELECT narad.create_topic('$t', visibility_timeout => '10 min');"
		  . " SELECT count(*) FROM narad.produce_batch('$t',"
		  . " ARRAY(SELECT to_jsonb(i) FROM generate_series(0, $n - 1) i))");
	return;
}

sub lease
{
	my ($s, $t, $n) = @_;
	return map { $_->[1] => $_->[0] }
	  $s->rows("SELECT receipt, msg_offset FROM narad.consume('$t', $n)");
}

sub comes
{
	my ($t) = @_;
	return one_value($node, "SELECT coalesce(string_agg(msg_offset::text, ' ' ORDER BY msg_offset), '')"
		  . " FROM narad.consume('$t', 1000)");
}

# The same without a commit, which might be held; and it all comes again.
sub would_come
{
	my ($t) = @_;
	my $s = narad_session($node);
	$s->rows('BEGIN');
	my %r = lease($s, $t, 1000);
	$s->rows('ROLLBACK');
	$s->quit;
	return join(' ', sort { $a <=> $b } keys %r);
}

# Sends a statement that is to be held at a stop point.
sub hold
{
	my ($point, $s, $sql) = @_;
	$s->backend_pid;
	$node->safe_psql('postgres', "SELECT narad_test.stop_arm('$point')");
	$s->send($sql);
	$node->safe_psql('postgres', "SELECT narad_test.stop_wait('$point')");
	return;
}

sub release
{
	my ($point, $s) = @_;
	$node->safe_psql('postgres', "SELECT narad_test.stop_release('$point')");
	return $s->finish;
}

sub terminate
{
	my ($s) = @_;
	$node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $s->backend_pid . ')');
	return $s->finish;
}

# All that was done so far is on disk.
sub to_disk
{
	$node->safe_psql('postgres', "INSERT INTO effect VALUES ('flush'); CHECKPOINT");
	return;
}

sub crash
{
	$node->stop('immediate');
	$node->start;
	return;
}

sub effects
{
	return one_value($node,
		"SELECT coalesce(string_agg(what, ' ' ORDER BY what), '') FROM effect WHERE what <> 'flush'");
}

# Takes and acks messages with an effect, up to the commit, which is held.
sub hold_ack
{
	my ($point, $t, $what, @offsets) = @_;
	my $s = narad_session($node);
	my %r = lease($s, $t, 6);

	$s->rows('BEGIN');
	$s->rows("INSERT INTO effect VALUES ('$what')");
	$s->rows('SELECT narad.ack(' . sql_array(@r{@offsets}) . ')');
	hold($point, $s, 'COMMIT');
	return ($s, %r);
}

sub wait_for_state
{
	my ($t) = @_;
	return poll_until('the state is written', sub {
		one_value($node, 'SELECT sum(unpersisted_ranges) FROM narad.groups'
			  . " WHERE topic = '$t'::regclass") eq '0' });
}

# Has the state page of the shard written and flushed, by an ack of another
# session.  (A plain ack may be lost in a crash until it is flushed.)
sub write_state
{
	my ($t) = @_;
	my $s = narad_session($node);
	my %r = lease($s, $t, 1);

	$s->rows('SELECT narad.ack(' . sql_array(values %r) . ')');
	wait_for_state($t);
	to_disk();
	$s->quit;
	return keys %r;
}

# ----------------------------------------------- acks: journalled, not committed

{
	fresh_topic('journalled', 10);
	my ($s) = hold_ack('commit-journalled', 'journalled', 'journalled', 0, 1, 4);
	to_disk();
	crash();
	is(comes('journalled'), '0 1 2 3 4 5 6 7 8 9', 'an ack that was journalled is void without its commit');
	is(effects(), '', 'as its effect');
	$s->quit;
}
{
	fresh_topic('folded', 10);
	my ($s) = hold_ack('commit-journalled', 'folded', 'folded', 0, 1, 4);
	my ($other) = write_state('folded');
	to_disk();
	crash();
	is($other, 6, 'another session acks meanwhile, and the state page is written');
	is(comes('folded'), '0 1 2 3 4 5 7 8 9', 'which makes neither the open ack count nor the other void');
	is(effects(), '', 'as its effect');
	$s->quit;
}
{
	fresh_topic('kept', 10);
	my ($s) = hold_ack('commit-journalled', 'kept', 'kept', 0, 1, 4);
	write_state('kept');
	is(comes('kept'), '7 8 9', 'what is being acked is not delivered');
	is(release('commit-journalled', $s), '00000', 'then the transaction commits');
	crash();
	is(comes('kept'), '2 3 5 7 8 9', 'the entry that the state page kept makes the ack stand');
	is(effects(), 'kept', 'with its effect');
	$s->quit;
}
{
	fresh_topic('ended', 10);
	my ($s) = hold_ack('commit-journalled', 'ended', 'ended', 0, 1, 4);
	write_state('ended');
	is(terminate($s), undef, 'a session ends between journal and commit');
	ok($node->poll_query_until('postgres',
			q{SELECT count(*) = 0 FROM narad.leases WHERE topic = 'ended'::regclass AND pinned}),
		'the leases are unpinned');
	write_state('ended');
	crash();
	is(comes('ended'), '0 1 2 3 4 5 8 9', 'its ack is void, those of others are not');
	is(effects(), 'kept', 'as its effect');
	$s->quit;
}

# -------------------------------------------- acks: committed, memory does not know

{
	fresh_topic('settling', 10);
	my ($s) = hold_ack('commit-settle', 'settling', 'settling', 0, 1, 4);
	is(would_come('settling'), '6 7 8 9', 'what was acked is not delivered before memory knows');
	crash();
	is(comes('settling'), '2 3 5 6 7 8 9', 'the ack stands from its commit on');
	is(effects(), 'kept settling', 'with its effect');
	$s->quit;
}
{
	fresh_topic('settled', 10);
	my ($s) = hold_ack('commit-settle', 'settled', 'settled', 0, 1, 4);
	# The entry may be folded into the image before the backend settles.
	would_come('settled');
	wait_for_state('settled');
	is(release('commit-settle', $s), '00000', 'a backend settles what was folded already');
	is(would_come('settled'), '6 7 8 9', 'once');
	write_state('settled');
	crash();
	is(comes('settled'), '2 3 5 7 8 9', 'and it stays so');
	$s->quit;
}

# ------------------------------------------------------------------- appending

my $size = "'256kB'";
sub content_is_whole
{
	my ($t, $n, $name) = @_;
	is(one_value($node, "SELECT count(*), bool_and(nt.msg_ok(value)) FROM $t"), "$n|t", "$name: scan");
	is(one_value($node, "SELECT count(*), bool_and(nt.msg_ok(value)) FROM nt.fetch_all('$t', 0)"), "$n|t",
		"$name: fetch");
	is(one_value($node, "SELECT count(*), bool_and(nt.msg_ok(value)) FROM narad.consume('$t', 1000)"),
		"$n|t", "$name: consume");
	return;
}

foreach my $end ('crash', 'terminate')
{
	# In the middle of a large record; others wait for it, and then go on.
	my $t = "large_$end";
	$node->safe_psql('postgres', qq{SELECT narad.create_topic('$t', segment_size => $size);
INSERT INTO $t (value) SELECT nt.msg('before' || i, 1, 1000) FROM generate_series(1, 20) i});
	my $s = narad_session($node);
	my $other = narad_session($node);
	hold('append-large-part', $s, "SELECT narad.produce('$t', nt.msg('large', 1, 1000000))");
	$other->backend_pid;
	$other->send("SELECT narad.produce('$t', nt.msg('waits', 1, 1000))");
	to_disk();
	my $n = 20;
	if ($end eq 'crash')
	{
		crash();
	}
	else
	{
		ok(!$other->answered, 'an append waits for a large one');
		is(terminate($s), undef, 'that is terminated');
		is($other->finish, '00000', 'then goes on');
		$node->safe_psql('postgres', "SELECT narad_test.stop_release('append-large-part')");
		$n++;
	}
	$node->safe_psql('postgres',
		"INSERT INTO $t (value) SELECT nt.msg('after' || i, 1, 50000 * (i % 2)) FROM generate_series(1, 6) i");
	content_is_whole($t, $n + 6, "after $end in a large record");
	crash();
	content_is_whole($t, $n + 6, "after $end in a large record, and a crash");
	$_->quit foreach ($s, $other);
}

foreach my $end ('crash', 'terminate')
{
	# While pages are prepared; others go on as far as there are some.
	my $t = "prepared_$end";
	$node->safe_psql('postgres', qq{SELECT narad.create_topic('$t', segment_size => $size);
INSERT INTO $t (value) VALUES (nt.msg('first', 1, 1000))});
	my $s = narad_session($node);
	my $other = narad_session($node);
	hold('append-prepare', $s,
		"INSERT INTO $t (value) SELECT nt.msg('held' || i, 1, 3000) FROM generate_series(1, 500) i");
	$other->backend_pid;
	$other->send("INSERT INTO $t (value) SELECT nt.msg('other' || i, 1, 3000) FROM generate_series(1, 300) i");
	to_disk();
	my $n = 1;
	if ($end eq 'crash')
	{
		crash();
	}
	else
	{
		is(terminate($s), undef, 'a session that prepares pages is terminated');
		$node->safe_psql('postgres', "SELECT narad_test.stop_release('append-prepare')");
		is($other->finish, '00000', 'another one goes on');
		$n += 300;
	}
	$node->safe_psql('postgres',
		"INSERT INTO $t (value) SELECT nt.msg('after' || i, 1, 3000) FROM generate_series(1, 200) i");
	content_is_whole($t, $n + 200, "after $end while preparing");
	crash();
	content_is_whole($t, $n + 200, "after $end while preparing, and a crash");
	$_->quit foreach ($s, $other);
}

foreach my $end ('crash', 'terminate')
{
	# A partition whose first segment is ready, and not open yet.
	my $t = "ready_$end";
	$node->safe_psql('postgres', qq{SELECT narad.create_topic('$t', segment_size => $size)});
	my $s = narad_session($node);
	hold('append-prepared', $s, "SELECT narad.produce('$t', nt.msg('held', 1, 1000))");
	to_disk();
	if ($end eq 'crash')
	{
		crash();
	}
	else
	{
		is(terminate($s), undef, 'a session that made a partition ready is terminated');
		$node->safe_psql('postgres', "SELECT narad_test.stop_release('append-prepared')");
		$node->restart;
	}
	$node->safe_psql('postgres',
		"INSERT INTO $t (value) SELECT nt.msg('after' || i, 1, 3000) FROM generate_series(1, 300) i");
	content_is_whole($t, 300, "after $end with a segment ready");
	crash();
	content_is_whole($t, 300, "after $end with a segment ready, and a crash");
	$s->quit;
}

# ------------------------------------------- delivered, and not yet flushed

# A commit that nobody waited for is on disk before its message is handed out:
# else its offset could be given to another message.
foreach my $call ("narad.consume('unflushed')", "narad.fetch('unflushed', 0, 0)")
{
	my $name = $call =~ s/\(.*//r;
	fresh_topic('unflushed', 0);
	$node->append_conf('postgresql.conf', 'wal_writer_delay = 10s');
	$node->restart;
	my $s = narad_session($node);
	$s->rows('SET synchronous_commit = off');
	$s->rows("SELECT narad.produce('unflushed', '\"delivered\"')");
	my $offset = $s->value("SELECT msg_offset FROM $call");
	$s->rows("SELECT narad.produce('unflushed', '\"not delivered\"')");
	crash();
	is($offset, '0', "$name: a message of an asynchronous commit is handed out");
	is(one_value($node, 'SELECT value FROM unflushed WHERE msg_offset = 0'), '"delivered"',
		"$name: then it survives a crash");
	is(one_value($node, "SELECT value FROM narad.consume('unflushed')"), '"delivered"',
		"$name: and is there for others");
	$node->safe_psql('postgres', "SELECT narad.drop_topic('unflushed')");
	$s->quit;
}

# ------------------------------------------------------------------- consuming

foreach my $point ('consume-claimed', 'consume-read', 'ack-found')
{
	my $t = $point =~ s/-/_/r;
	fresh_topic($t, 8);
	my $s = narad_session($node);
	my %r = lease($s, $t, 2);

	$s->rows('BEGIN');
	hold($point, $s, $point eq 'ack-found' ? "SELECT narad.ack('$r{0}')"
		: "SELECT count(*) FROM narad.consume('$t', 3)");
	is(terminate($s), undef, "$point: a session is terminated");
	$node->safe_psql('postgres', "SELECT narad_test.stop_release('$point')");
	ok(poll_until('the session is gone', sub {
		one_value($node, 'SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $s->backend_pid) eq '0' }),
		"$point: and gone");
	is(would_come($t), '2 3 4 5 6 7', "$point: what it had claimed comes");
	my $other = narad_session($node);
	is($other->try("SELECT narad.ack('$r{0}')"), '00000', "$point: its committed lease is live");
	write_state($t);
	crash();
	is(comes($t), '1 3 4 5 6 7', "$point: after a crash all but the two acked ones come");
	$_->quit foreach ($s, $other);
}

$node->stop;
log_is_clean($node, 'the log is clean');
done_testing();
