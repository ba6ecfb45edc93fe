#!/usr/bin/perl
# Every function of the extension's script states its volatility and PARALLEL, and has a COMMENT.
use strict;
use warnings;
use File::Basename;

chdir dirname($0) . '/../..' or die;
my $bad = 0;

foreach my $file (glob 'narad--*.sql')
{
	open my $fh, '<', $file or die "$file: $!";
	my $text = do { local $/; <$fh> };
	$text =~ s/--.*$//mg;
	my (@functions, %comment);

	# Names only: overloads share the name, and each needs a comment of its own.
	while ($text =~ /\bCREATE (?:OR REPLACE )?(FUNCTION|PROCEDURE)\s+([\w.]+)\s*\((.*?);/sg)
	{
		my ($kind, $name, $rest) = ($1, $2, $3);
		# The attributes stand outside of the body and of the arguments.
		push @functions, $name;
		next if $kind eq 'PROCEDURE';
		print("$file: $name does not state its volatility\n"), $bad = 1
		  if $rest !~ /\b(IMMUTABLE|STABLE|VOLATILE)\b/;
		print("$file: $name does not state PARALLEL\n"), $bad = 1
		  if $rest !~ /\bPARALLEL (UNSAFE|RESTRICTED|SAFE)\b/;
	}
	$comment{$1}++
	  while $text =~ /\bCOMMENT ON (?:FUNCTION|PROCEDURE|ROUTINE)\s+([\w.]+)/g;
	my %count;
	$count{$_}++ foreach @functions;
	foreach my $name (sort keys %count)
	{
		next if ($comment{$name} // 0) >= $count{$name};
		print "$file: $name has no COMMENT for each of its signatures\n";
		$bad = 1;
	}
}
exit $bad;
