"""Planted faults survive a rewrite of the code around them. A fault that no longer fits says what to do."""

import ast
from pathlib import Path

import pytest

from tests.simulation.planting import Code, Fault, LostFault, check_fits, planted

SHOP = """
from math import floor


class Till:
    def add(self, price, count):
        total = price * count  # of one line
        for coin in self.coins(total):
            self.total += coin
            self.total += coin
        return floor(total)

    def coins(self, total):
        limit = total
        return [coin for coin in (limit,)]
"""


def code(folder: Path, text: str = SHOP) -> Code:
    (folder / "shop").mkdir()
    (folder / "shop" / "till.py").write_text(text)
    return Code(folder / "shop")


def shop_with(folder: Path, fault: Fault, text: str = SHOP) -> str:
    (module,) = planted(fault, code(folder, text)).items()
    assert module[0] == "shop.till"
    return ast.unparse(module[1])


def test_expression_is_replaced(tmp_path: Path) -> None:
    assert "total = price + count" in shop_with(tmp_path, Fault("Till.add", "price * count", "price + count"))


def test_consecutive_statements_are_replaced(tmp_path: Path) -> None:
    twice = "self.total += coin\nself.total += coin"
    assert shop_with(tmp_path, Fault("Till.add", twice, "self.total += coin")).count("self.total += coin") == 1


def test_layout_and_comments_do_not_matter(tmp_path: Path) -> None:
    assert "total = 0" in shop_with(tmp_path, Fault("Till.add", "total = (price\n  *  count)  # any", "total = 0"))


def test_ellipsis_stands_for_any_expression(tmp_path: Path) -> None:
    assert "in self.coins(0)" in shop_with(tmp_path, Fault("Till.add", "self.coins(...)", "self.coins(0)"))


def test_local_variables_may_have_new_names(tmp_path: Path) -> None:
    fault = Fault("Till.add", "amount = each * number", "amount = each + number")
    assert "total = price + count" in shop_with(tmp_path, fault)


@pytest.mark.parametrize("right", ["each * each", "math(total)", "price * price"])
def test_other_code_does_not_pass_for_renamed(tmp_path: Path, right: str) -> None:
    with pytest.raises(LostFault, match="this is not in it"):
        planted(Fault("Till.add", right, "0"), code(tmp_path))


def test_several_changes_of_one_module(tmp_path: Path) -> None:
    fault = Fault("Till.add", "price * count", "0", (Fault("Till.coins", "(limit,)", "()"),))
    text = shop_with(tmp_path, fault)
    assert "total = 0" in text and "in ()]" in text


def lost(folder: Path, *fault: str) -> str:
    with pytest.raises(LostFault) as error:
        check_fits(Fault(*fault), code(folder))
    assert "delete the fault" in str(error.value)
    return str(error.value)


def test_unknown_definition_names_similar_ones(tmp_path: Path) -> None:
    assert "Similar names: Till.add" in lost(tmp_path, "Till.adds", "price", "0")


def test_missing_piece_shows_the_most_similar_code(tmp_path: Path) -> None:
    assert "Most like it is shop.till, line 7: price * count" in lost(tmp_path, "Till.add", "price * counts * 2", "0")


def test_piece_that_is_there_twice_names_the_lines(tmp_path: Path) -> None:
    assert "2 times" in (told := lost(tmp_path, "Till.add", "self.total += coin", "pass")) and "line 10" in told


@pytest.mark.parametrize("wrong", ["prize + count", "self.prize", "limit"])
def test_wrong_code_uses_only_names_that_exist(tmp_path: Path, wrong: str) -> None:
    name = wrong.split(" ")[0].removeprefix("self.")
    assert f"uses what is not there: {name}" in lost(tmp_path, "Till.add", "price * count", wrong)
