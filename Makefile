EXTENSION = narad
MODULE_big = narad
DATA = narad--1.0.sql
PGFILEDESC = "narad - log-backed queues"

here := $(dir $(lastword $(MAKEFILE_LIST)))

OBJS = $(patsubst $(here)%.c,%.o,$(sort $(wildcard $(here)src/*.c $(here)src/*/*.c)))

ALL_H = $(wildcard $(here)src/*.h $(here)src/*/*.h)

PG_CPPFLAGS = -I$(srcdir)/src

# A spec with the line "# needs: stop points" runs under "make test" only:
# those points are compiled into the testing library, which is never installed.
SPECS_PLAIN = $(shell grep -L '^\# needs: stop points' $(here)test/specs/*.spec 2>/dev/null)

REGRESS = $(patsubst $(here)sql/%.sql,%,$(sort $(wildcard $(here)sql/*.sql)))
REGRESS_OPTS = --load-extension=narad
ISOLATION = $(patsubst $(here)test/specs/%.spec,%,$(sort $(SPECS_PLAIN)))
ISOLATION_OPTS = --inputdir=test --outputdir=output_iso --load-extension=narad
TAP_TESTS = $(if $(wildcard $(here)test/t/*.pl),1)
PROVE_TESTS = test/t/*.pl

EXTRA_CLEAN = build output_iso results tmp_check log regression.diffs regression.out

PG_CONFIG ?= $(firstword $(wildcard /usr/lib/postgresql/15/bin/pg_config) pg_config)
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

ifneq ($(wildcard $(PGXS)),)
include $(PGXS)

# PostgreSQL may be built without --enable-depend: a changed header, or changed
# flags, rebuild everything.
$(OBJS) $(OBJS:.o=.bc): $(ALL_H) $(here)Makefile
else
all install installcheck uninstall clean:
	@echo "PostgreSQL's PGXS was not found: install postgresql-server-dev-15, or set PG_CONFIG" >&2
	@exit 1
endif

.DEFAULT_GOAL := all
.PHONY: demo indent lint test unit

demo:
	$(here)demo/run $(DEMO_FILE)

indent:
	$(here)test/lint/indent.sh

lint:
	$(here)test/run lint

test:
	$(here)test/run

unit:
	$(here)test/run unit
