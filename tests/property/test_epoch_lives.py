"""Random lives of leader epochs on the shipped store: they say what the records do."""

import pytest

from liftbridge_broker.model.streams import StreamOptions
from liftbridge_testkit.epoch_life import life
from liftbridge_testkit.stores import StoreBed, key_of

STEPS = 700
PARTITION = key_of(1)


@pytest.mark.parametrize("seed", range(12))
def test_epochs_agree_with_the_records_whatever_happens(seed):
    one = life(seed)
    for _ in range(STEPS):
        one.step()
    one.heal(1)
    assert one.is_well


def test_epochs_that_were_cut_off_do_not_come_back_for_records_of_older_ones():
    """Seed 1: killed between a cut and the next word of the journal, with records in between."""
    bed = StoreBed()
    bed.start({PARTITION: StreamOptions()})
    bed.append(PARTITION, [b"kept"], leader_epoch=3)
    bed.append(PARTITION, [b"cut"], leader_epoch=6)
    bed.store.journal_state(PARTITION, lambda: None, bed.now)
    bed.pump()
    bed.store.truncate([(PARTITION, bed.log(PARTITION).log_end_offset - 1)], bed.now)
    bed.append(PARTITION, [b"of", b"the leader"], leader_epoch=3)
    bed.files.kill()
    bed.start({PARTITION: StreamOptions()})
    assert bed.log(PARTITION).epochs.entries == ((3, 0),)
