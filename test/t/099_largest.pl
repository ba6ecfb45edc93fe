# Copyright (c) 2026, the Narad authors
#
# I1, I3: the largest message there can be, 256 MB over many segments, is as good
# as any: read by every way, after a crash too, and when the limit is lower by
# then; rolled back; and dropped, when its space is used again.  One byte more
# is refused.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $node = narad_node('largest', conf => [
	'autovacuum = off', 'fsync = off', 'shared_buffers = 64MB', 'max_wal_size = 512MB',
	"narad.max_message_size = '256MB'" ]);
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION narad;
SELECT narad.create_topic('big', value_type => 'bytea', visibility_timeout => '1 hour', cleanup => 'settled');
-- A megabyte that does not compress, 256 times.
CREATE TABLE made (b bytea);
ALTER TABLE made ALTER b SET STORAGE EXTERNAL;
INSERT INTO made
	SELECT string_agg(mb, ''::bytea)
	FROM (SELECT string_agg(sha512(i::text::bytea), ''::bytea ORDER BY i) AS mb FROM generate_series(1, 16384) i) m,
		generate_series(1, 256);
CREATE TABLE expected AS SELECT length(b) AS len, md5(b) AS hash FROM made;
});
is(one_value($node, 'SELECT len FROM expected'), 256 * 1024 * 1024, 'it is of 256 MB');

my $whole = 'count(*), bool_and((length(value), md5(value)) = (len, hash)) FROM expected,';

sub is_there
{
	my ($name) = @_;
	is(one_value($node, "SELECT $whole big WHERE msg_offset = 0"), '1|t', "$name: by scan");
	is(one_value($node, "SELECT $whole narad.fetch_bytes('big', 0, 0, 1)"), '1|t', "$name: by fetch");
	return;
}

is(one_value($node, q{SELECT msg_offset FROM narad.produce_bytes('big', (SELECT b FROM made))}), '0', 'it is produced');
is_there('produced');
my $s = narad_session($node);
is($s->try(q{SELECT narad.produce_bytes('big', (SELECT b || '\x00' FROM made))}), '54000', 'one byte more is too much');
is($s->try(q{SELECT narad.produce_bytes('big', (SELECT b FROM made), key => 'k')}), '54000', '... in the key, too');
is($s->try(q{BEGIN; SELECT narad.produce_bytes('big', (SELECT b FROM made)); ROLLBACK}), '00000', 'one that is rolled back');
is($s->try(q{BEGIN; SAVEPOINT a; SELECT narad.produce_bytes('big', (SELECT b FROM made)); ROLLBACK TO a; COMMIT}), '00000',
	'and with a savepoint');
is($s->value(q{SELECT msg_offset FROM narad.produce_bytes('big', 'small')}), '3', 'their offsets are used up');
is(one_value($node, 'SELECT count(*), min(msg_offset), max(msg_offset) FROM big'), '2|0|3', 'they are not there');
cmp_ok(one_value($node, q{SELECT count(*) FROM narad.segments WHERE topic = 'big'::regclass}), '>', 3 * 15,
	'they lie in many segments');
is(one_value($node, q{SELECT count(*) FROM narad.verify('big')}), '0', 'verify');

$s->quit;
$node->append_conf('postgresql.conf', "narad.max_message_size = '1MB'");
flush_wal($node);
$node->stop('immediate');
$node->start;
is_there('after a crash, under a lower limit');
is(one_value($node, q{SELECT count(*) FROM narad.verify('big')}), '0', 'verify, after a crash');
is(one_value($node, "SELECT $whole narad.consume_bytes('big', 1)"), '1|t', 'consumed');
$s = narad_session($node);
is($s->try(q{SELECT narad.produce_bytes('big', (SELECT substr(b, 1, 1048577) FROM made))}), '54000', 'the lower limit is for writers');
is($s->try(q{SELECT narad.seek('big', 'default', 0, 4)}), '00000', 'all is settled');
ok(poll_until('it is gone', sub {
	$s->try(q{SELECT narad.apply_retention('big')});
	$s->value(q{SELECT count(*) FROM narad.segments WHERE topic = 'big'::regclass}) <= 2 }), 'its segments go');
is(one_value($node, q{SELECT value FROM big}), '\x' . unpack('H*', 'small'), 'what came after it stays');
$s->quit;
$node->stop;
log_is_clean($node, 'the log is clean');
done_testing();
