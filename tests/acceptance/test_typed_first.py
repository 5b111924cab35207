"""The first commands that anybody types."""


def test_the_headline_question_is_answered(answers):
    shown, facts = answers("fit gpt-200b 160xA100-40GB --dp 160")
    assert shown.code == 1
    assert facts["verdict"] == "no"
    assert "3.5" in shown.words
