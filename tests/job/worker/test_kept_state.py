"""What a store has of operators goes to those of the same name and bins, or the job is refused."""

import pytest

from megaflow.control.checkpoint_messages import DurableOperator
from megaflow.durable.commits import Commit, OperatorCut
from megaflow.errors import StoreError
from megaflow.job.worker.kept_state import check_operators


def test_an_operator_that_is_gone_renamed_or_has_other_bins_is_refused() -> None:
    commit = Commit(7, 3, 41, 2, operators=(OperatorCut("count", "", (3, None)), OperatorCut("sum", "", (3,))))
    count, total = DurableOperator("count", 2), DurableOperator("sum", 1)
    check_operators((count, total, DurableOperator("new", 8)), commit)
    with pytest.raises(StoreError, match="state of operator 'sum', which the program does not have: give that name"):
        check_operators((count,), commit)
    with pytest.raises(StoreError, match="operator 'count', which the program does not have; new are 'counts': give"):
        check_operators((DurableOperator("counts", 2), total), commit)
    with pytest.raises(StoreError, match="state of operator 'count' in 2 bins, not in 4: give that number again by bi"):
        check_operators((DurableOperator("count", 4), total), commit)
