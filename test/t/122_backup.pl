# Copyright (c) 2026, the Narad authors
#
# I1, I5: a base backup taken under load, and a recovery to any point in time,
#     hold what was committed by then: messages, the acks of transactions that
#     wrote, and no others.
# I2, I4: leases are gone then, and their receipts worth nothing.
# I6: frontiers do not go past what was acked by then.
#
# pg_basebackup as a folder and as tar, beside consumers and retention that cuts
# files; point-in-time recovery to names, transactions and places in the WAL,
# between a produce and its ack, and between that and what came later.  Some of
# the topics lie in a tablespace, which is elsewhere in each copy.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('primary', streaming => 1, conf => [ 'autovacuum = off', 'max_wal_size = 512MB',
	"narad.frontier_write_interval = '10ms'" ]);
$node->enable_archiving;
$node->start;
create_work($node);
$node->safe_psql('postgres', q{
SELECT narad.create_topic('leased', visibility_timeout => '1 hour');
SELECT narad.produce('leased', '1')});
my $lease = one_value($node, q{SELECT receipt FROM narad.consume('leased')});
my $space = PostgreSQL::Test::Utils::tempdir;
$node->safe_psql('postgres', "CREATE TABLESPACE space LOCATION '$space'");
$node->safe_psql('postgres', "ALTER TABLE $_ SET TABLESPACE space") foreach ('q', 'leased', map { "churn$_" } (0 .. 3));
my $space_oid = one_value($node, q{SELECT oid FROM pg_tablespace WHERE spcname = 'space'});

# A backup as a folder, with the tablespace in a place of its own.
my %mapped;
sub back_up
{
	my ($name, @options) = @_;
	$mapped{$name} = PostgreSQL::Test::Utils::tempdir . '/space';
	$node->backup($name, backup_options => [ '-T', "$space=$mapped{$name}", @options ]);
	return;
}

# A server from a backup, which has its own copy of the tablespace: by a link, as
# pg_basebackup made it, or by the map that a tar has.
sub restore
{
	my ($name, $backup, %params) = @_;
	my $copy = PostgreSQL::Test::Cluster->new($name);
	my $from = $node->backup_dir . "/$backup";
	my $own = PostgreSQL::Test::Utils::tempdir . '/space';
	unlink("$from/pg_tblspc/$space_oid") unless $params{tar_program};
	$copy->init_from_backup($node, $backup, %params);
	if ($params{tar_program})
	{
		mkdir($own) or die "$own: $!";
		system_or_bail($params{tar_program}, 'xf', "$from/$space_oid.tar", '-C', $own);
		unlink($copy->data_dir . '/tablespace_map') or die $!;
		append_to_file($copy->data_dir . '/tablespace_map', "$space_oid $own\n");
	}
	else
	{
		PostgreSQL::Test::RecursiveCopy::copypath($mapped{$backup}, $own);
		symlink($own, $copy->data_dir . "/pg_tblspc/$space_oid") or die $!;
	}
	return ($copy, $own);
}

# ---- base backups, while messages come and go ---------------------------------

my @load = map { narad_session($node) } (0 .. 3);
my $effects = sub { one_value($node, 'SELECT count(*) FROM effect') };
$load[$_]->send('CALL work(100000, 0.02)') foreach (0 .. 2);
$load[3]->send('CALL churn(100000, 0.1)');
my $size = one_value($node, q{SELECT sum(pg_relation_size(('churn' || i)::regclass)) FROM generate_series(0, 7) i});

# Each goes on for as long as the load has done much, and files were cut.
my %taken;
foreach my $format ('plain', 'tar')
{
	my $before = $effects->();
	ok(poll_until('the load is at work', sub { $effects->() > $before + 20 }), "$format: the load is at work");
	$taken{$format}[0] = $effects->();
	$format eq 'plain' ? back_up('base', '--max-rate=16M') : $node->backup('tar', backup_options => [ '--max-rate=16M', '-Ft' ]);
	$taken{$format}[1] = $effects->();
	cmp_ok($taken{$format}[1], '>', $taken{$format}[0], "$format: it went on during the backup");
}
cmp_ok(one_value($node, q{SELECT sum(pg_relation_size(('churn' || i)::regclass)) FROM generate_series(0, 7) i}), '<', $size / 2,
	'retention has cut files');
one_value($node, 'SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE query ~ \'^CALL (work|churn)\'');
is($_->finish, '57014', 'the load ends when it is told to') or diag($_->{error}) foreach (@load);
command_ok([ 'pg_verifybackup', $node->backup_dir . '/base' ], 'the backup matches its manifest');

foreach my $format ('plain', 'tar')
{
	my ($copy, $own) = restore("restored_$format", $format eq 'plain' ? ('base') : ('tar', tar_program => 'tar'));
	# Only with the WAL that came with it: as of the backup's end.
	$copy->append_conf('postgresql.conf', 'archive_mode = off');
	$copy->start;
	is(one_value($copy, "SELECT pg_tablespace_location($space_oid)"), $own, "$format: it has a tablespace of its own");
	cmp_ok(-s $copy->data_dir . '/' . one_value($copy, q{SELECT pg_relation_filepath('q') FROM pg_class
WHERE oid = 'q'::regclass AND reltablespace = } . $space_oid), '>', 0, "$format: with a topic in it");
	my $n = one_value($copy, 'SELECT count(*) FROM effect');
	ok($taken{$format}[0] < $n && $n <= $taken{$format}[1],
		"$format: it is as of the backup's end: $taken{$format}[0] < $n <= $taken{$format}[1]");
	work_is_exact($copy, $format);
	my ($ret, undef, $error) = $copy->psql('postgres', "SELECT narad.ack('$lease')");
	like($error, qr/receipt is no longer valid/, "$format: a receipt of before is worth nothing");
	is(one_value($copy, q{SELECT value FROM narad.consume('leased')}), '1', "$format: the message comes again");
	$copy->safe_psql('postgres', 'CALL work(20); CALL churn(16)');
	is(all_findings($copy), '', "$format: work goes on, and verify finds nothing");
	$copy->stop('immediate');
	$copy->start;
	is(all_findings($copy), '', "$format: nor after a crash");
	$copy->stop;
	command_ok([ 'pg_checksums', '--check', '-D', $copy->data_dir ], "$format: checksums");
	logs_are_clean($format, $copy);
}

# ---- to points in time ----------------------------------------------------------

my $s = $load[0];
my %xid;
my %lsn;
sub point
{
	my ($name) = @_;
	$lsn{$name} = $s->value("SELECT pg_create_restore_point('$name')");
	return;
}
$s->rows("SET default_tablespace = space; SELECT narad.create_topic('pit', visibility_timeout => '1 hour')");
$s->rows("SELECT narad.produce('pit', '\"first\"')");
# Most start here, as there is less to replay.
back_up('later');
my $receipt = $s->value("SELECT receipt FROM narad.consume('pit')");
point('leased');
$s->rows('BEGIN');
$s->rows("SELECT narad.ack('$receipt')");
$s->rows("INSERT INTO effect VALUES ('pit', 0, 0, NULL)");
$xid{acked} = $s->value('SELECT pg_current_xact_id()');
point('acking');
$s->rows('COMMIT');
point('acked');
$s->rows("SELECT narad.produce_batch('pit', ARRAY['\"second\"', '\"third\"']::jsonb[])");
$s->rows('BEGIN');
# The later one alone.
$s->rows("SELECT narad.ack(receipt) FROM narad.consume('pit', 2) WHERE msg_offset = 2");
$s->rows("INSERT INTO effect VALUES ('pit', 0, 2, NULL)");
$xid{later} = $s->value('SELECT pg_current_xact_id()');
$s->rows('COMMIT');
point('later');
$s->rows("SELECT narad.seek('pit', 'default', 0, 0)");
point('sought');
$s->rows("SELECT narad.pause_group('pit', 'default'); SELECT narad.create_group('pit', 'late', 'latest')");
$s->rows("BEGIN; SELECT narad.produce('pit', '\"open\"')");
point('open');
$s->rows('COMMIT');
$s->rows('TRUNCATE pit');
point('truncated');
$s->rows('INSERT INTO effect VALUES (NULL, 1, 1, NULL); SELECT pg_switch_wal()');
$_->quit foreach (@load);
$node->stop;
command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'checksums after a clean stop');

# Name; target; what a consumer gets; effects; offset of the next message.  The
# first is reached from the backup that was taken under load.
my @points = (
	[ 'later', "name = 'later'", '1', '0 2', 3 ],
	[ 'leased', "name = 'leased'", '0', '', 1 ],
	[ 'acking', "lsn = '$lsn{acking}'", '0', '', 1 ],
	[ 'not acked', "xid = '$xid{acked}'\nrecovery_target_inclusive = off", '0', '', 1 ],
	[ 'acked, by xid', "xid = '$xid{acked}'", '', '0', 1 ],
	[ 'acked, by lsn', "lsn = '$lsn{acked}'", '', '0', 1 ],
	[ 'before the later', "xid = '$xid{later}'\nrecovery_target_inclusive = off", '1 2', '0', 3 ],
	[ 'sought', "name = 'sought'", '0 1 2', '0 2', 3 ],
	[ 'open', "name = 'open'", '0 1 2', '0 2', 4 ],
	[ 'truncated', "name = 'truncated'", '', '0 2', 4 ]);
foreach my $point (@points)
{
	my ($name, $target, $comes, $effect, $next) = @$point;
	my ($pit) = restore('pit_' . ($name =~ s/\W/_/gr), $name eq 'later' ? 'base' : 'later', has_restoring => 1, standby => 0);
	$pit->append_conf('postgresql.conf', "recovery_target_$target\nrecovery_target_action = 'promote'\nrecovery_target_timeline = '1'\narchive_mode = off");
	$pit->start;
	$pit->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
	work_is_exact($pit, $name) if $name eq 'later';
	is(one_value($pit, q{SELECT count(*) FROM narad.leases WHERE topic = 'pit'::regclass}), 0, "$name: no lease is left");
	my ($ret, undef, $error) = $pit->psql('postgres', "SELECT narad.ack('$receipt')");
	like($error, qr/receipt is no longer valid/, "$name: a receipt of before is worth nothing");
	if ($name =~ /open|truncated/)
	{
		is(one_value($pit, q{SELECT count(*) FROM narad.consume('pit', 10)}), 0, "$name: a paused group is");
		$pit->safe_psql('postgres', "SELECT narad.resume_group('pit', 'default')");
	}
	is(one_value($pit, q{SELECT coalesce(string_agg(msg_offset::text, ' ' ORDER BY msg_offset), '') FROM narad.consume('pit', 10)}),
		$comes, "$name: what a consumer gets");
	is(one_value($pit, q{SELECT coalesce(string_agg(msg_offset::text, ' ' ORDER BY msg_offset), '') FROM effect WHERE consumer_group = 'pit'}),
		$effect, "$name: effects");
	is(one_value($pit, "SELECT msg_offset FROM narad.produce('pit', '2')"), $next, "$name: the next offset");
	is(one_value($pit, "SELECT string_agg(value::text, ' ') FROM narad.consume('pit', 10, consumer_group => 'late')"),
		'2', "$name: a group made at the end") if $name =~ /open|truncated/;
	is(one_value($pit, "SELECT epoch FROM narad.offsets('pit')"), 2, "$name: the epoch");
	is(one_value($pit, q{SELECT count(*) FROM narad.verify('pit')}), 0, "$name: verify finds nothing");
	$pit->stop('immediate');
	log_is_clean($pit, "$name: its log");
}
logs_are_clean('backup', $node);
done_testing();
