#!/usr/bin/perl
# Turns a Debian package index (apt-cache dumpavail) on standard input into one
# JSON object a line: what the demo produces as messages.
use strict;
use warnings;

my %known = map { $_ => 1 } qw(package version section priority maintainer
  architecture source installed_size size homepage description depends filename);
my %number = (installed_size => 1, size => 1);

sub quote
{
	my ($text) = @_;
	$text =~ s/(["\\])/\\$1/g;
	$text =~ s/\n/\\n/g;
	$text =~ s/([\x00-\x1f])/sprintf '\\u%04x', ord $1/ge;
	return qq("$text");
}

$/ = '';
while (my $paragraph = <STDIN>)
{
	$paragraph =~ s/\n+\z//;

	# A line that begins with a space goes on with the field before it.
	my (%field, @order, $name);
	foreach my $line (split /\n/, $paragraph)
	{
		if ($line =~ /^([A-Za-z][A-Za-z0-9-]*):\s*(.*)$/)
		{
			$name = lc($1) =~ tr/-/_/r;
			next unless $known{$name};
			push @order, $name unless exists $field{$name};
			$field{$name} = $2;
		}
		elsif (defined $name and $known{$name} and $line =~ /^\s+(.*)$/)
		{
			$field{$name} .= "\n$1";
		}
	}
	next unless defined $field{package};
	$field{source} = (split ' ', $field{source} // $field{package})[0];
	push @order, 'source' unless grep { $_ eq 'source' } @order;

	print '{', join(
		', ',
		map {
			my $value = $field{$_};
			qq("$_": ) . ($number{$_} && $value =~ /^\d+\z/ ? $value : quote($value));
		} @order), "}\n";
}
