# Copyright (c) 2026, the Narad authors
#
# I1, I5, I6: pg_upgrade takes topics along with what their groups have settled,
#     and leases do not matter to it.
# I12: what is appended by the new server is in an epoch of its own.
#
# Old and new server are of one major version, which pg_upgrade allows: files
# are copied, or linked, and the catalogs are made anew, as always.  What a change
# of major version changes besides is not shown here.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $old = narad_node('old', conf => ['autovacuum = off']);
$old->start;
create_work($old);
# Attribute numbers with a gap, own columns, values of other types, aborted and
# frozen records, producers and ids that must stay known.
$old->safe_psql('postgres', q{
CALL work(100);
CALL churn(10);
CREATE TABLE more (LIKE narad.topic_template, a int, b text) USING narad;
ALTER TABLE more DROP COLUMN a;
SELECT narad.alter_topic('more', max_in_flight => 10000);
INSERT INTO more (value, b) SELECT to_jsonb(i), md5(i::text) FROM generate_series(1, 1000) i;
BEGIN;
INSERT INTO more (value) SELECT '"aborted"' FROM generate_series(1, 100);
ROLLBACK;
VACUUM FREEZE more;
INSERT INTO more (value, b) SELECT to_jsonb(i), md5(i::text) FROM generate_series(1001, 1500) i;
SELECT narad.create_topic('bytes', value_type => 'bytea');
SELECT narad.produce_bytes('bytes', '\x00ff');
SELECT narad.produce('more', '"once"', dedup_id => 'id');
SELECT * FROM narad.produce_once('more', '"counted"', 'producer', 7);
SELECT narad.produce('more', '"later"', deliver_after => '1 day');
SELECT narad.pause_group('q', 'second');
SELECT count(*) FROM narad.consume('more', 10, visibility_timeout => '1 hour');
});
my $content = q{SELECT (SELECT md5(string_agg(m::text, ' ' ORDER BY partition, msg_offset)) FROM more m) || ' ' ||
	(SELECT md5(string_agg(q::text, ' ' ORDER BY partition, msg_offset)) FROM q) || ' ' || (SELECT value FROM bytes)};
my $settings = q{SELECT string_agg(t::text, ' ' ORDER BY topic::text) FROM narad.topics t};
my $groups = q{SELECT string_agg(concat_ws(' ', topic, consumer_group, partition, frontier, end_offset, paused), ', '
	ORDER BY topic::text, consumer_group, partition) FROM narad.groups};
my %before = map { $_ => one_value($old, $_) } ($content, $settings, $groups);
my $receipt = one_value($old, q{SELECT receipt FROM narad.consume('more')});
$old->stop;

my ($bin) = grep { -x "$_/pg_upgrade" } split(/:/, $ENV{PATH});
foreach my $mode ('copied', 'linked')
{
	my $new = narad_node($mode, conf => [ 'autovacuum = off' ]);
	chdir(PostgreSQL::Test::Utils::tempdir);
	my @upgrade = ('pg_upgrade', '--no-sync', '-d', $old->data_dir, '-D', $new->data_dir, '-b', $bin, '-B', $bin,
		'-s', $new->host, '-p', $old->port, '-P', $new->port, $mode eq 'linked' ? ('--link') : ());
	if ($mode eq 'copied')
	{
		$new->append_conf('postgresql.conf', "shared_preload_libraries = ''");
		command_checks_all([@upgrade, '--check'], 1, [qr/Your installation references loadable libraries/], [qr/^/],
			'a new server that does not load narad is not upgraded to');
		$new->append_conf('postgresql.conf', "shared_preload_libraries = 'narad'");
	}
	command_ok(\@upgrade, "$mode: pg_upgrade");
	$new->start;
	is(one_value($new, $content), $before{$content}, "$mode: messages and their positions");
	is(one_value($new, $settings), $before{$settings}, "$mode: topics and their settings");
	is(one_value($new, $groups), $before{$groups}, "$mode: groups, and where they are");
	is(one_value($new, q{SELECT count(*) FROM pg_class WHERE relam = (SELECT oid FROM pg_am WHERE amname = 'narad')
	AND (age(relfrozenxid) > 100000 OR relfrozenxid = '0')}), 0, "$mode: their age");
	my ($ret, undef, $error) = $new->psql('postgres', "SELECT narad.ack('$receipt')");
	like($error, qr/receipt is no longer valid/, "$mode: a receipt of before is worth nothing");
	is(one_value($new, q{SELECT duplicate FROM narad.produce_once('more', '1', 'producer', 7)}), 't', "$mode: a producer is known");
	is(one_value($new, q{SELECT msg_offset FROM narad.produce('more', '1', dedup_id => 'id')}),
		one_value($new, q{SELECT msg_offset FROM more WHERE value = '"once"'}), "$mode: and an id");
	$new->safe_psql('postgres', q{SELECT narad.resume_group('q', 'second')});
	work_is_exact($new, $mode);
	is(one_value($new, q{SELECT epoch FROM narad.offsets('q') WHERE partition = 0}), 2, "$mode: what is appended is of another epoch");
	$new->safe_psql('postgres', q{CALL work(20); CALL churn(10); VACUUM FREEZE});
	is(all_findings($new), '', "$mode: verify finds nothing");
	is(one_value($new, q{SELECT count(*) FROM narad.consume('more', 10000)}), 1502, "$mode: what is due comes");
	$new->safe_psql('postgres', q{SELECT narad.create_topic('after'); SELECT narad.produce('after', '1')});
	$new->stop;
	logs_are_clean($mode, $new);
}
done_testing();
