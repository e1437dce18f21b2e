"""A module that raises neither an Exception nor the end of the process."""


class Direct(BaseException):
    pass


raise Direct("direct")
